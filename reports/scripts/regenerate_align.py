"""Does PRC make experts reproducible? Experts of trainings that differ in their seed alone, aligned.

    python checkpoints/train.py digits --seeds 3 4 5 6 7 8 9 --folder checkpoints/align
    python -m reports.scripts.regenerate_align

Three seeds are committed; the first command trains more of digits in the same way. Writes to ``reports/align``:
``shares.csv``, which share of routing data determine, by model, and PRC minus V-MoE; ``pairs.csv``, from the lowest to
the highest pair of seeds, κ of aligned experts and κ of the best alignment of unrelated images; and a figure of κ of
digits with k = 2.
"""

import itertools
from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.metrics import alignment
from moeprobe.metrics.analyses.expert_overlap import EXPERT_OVERLAP
from moeprobe.metrics.declaration import KAPPA
from moeprobe.results.figures import save
from moeprobe.results.layouts.agreement import is_difference
from moeprobe.runtime.files import write_csv
from reports.scripts.objectives import MODELS
from reports.scripts.printed import shrink

OUT = Path("reports/align")
# Where the committed checkpoints are, and the trained ones.
FOLDERS = (Path("checkpoints/reference"), Path("checkpoints/align"))
TOP_KS = (2, 1)
# Checkpoints of a data set -> its name, and how many trainings of it there are.
DATA = {"digits": ("digits", 10), "fashion": ("fashion_mnist", 3)}
# Of the test images; digits have fewer.
LIMIT = 1000
DIFFERENCE = "difference"
SHARES = {
    alignment.SHARE_DATA.name: "data",
    alignment.SHARE_POSITION.name: "position",
    alignment.SHARE_CONTENT.name: "content",
    alignment.SHARE_SEED.name: "seed",
}
PAIRS = {
    f"{EXPERT_OVERLAP.name}{KAPPA}": "κ, held out",
    alignment.FITTED.name: "κ, in sample",
    alignment.FITTED_UNRELATED.name: "κ, unrelated images",
    alignment.FITTED_P.name: "p",
    alignment.SAME_ALIGNMENT.name: "experts aligned alike",
}


def main() -> None:
    """Align and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    shares, pairs = [], []
    for (called, (data, seeds)), top_k in itertools.product(DATA.items(), TOP_KS):
        models = checkpoints(called, top_k, seeds)
        result = api.align(models, data=data, limit=LIMIT, device="cpu", figures=False)
        table = result.table[result.table["tokens"] == "patch"]
        models_of_rows = [model_of(name) for name in table["checkpoint"]]
        table = table.assign(data=data, k=top_k, model=models_of_rows)
        shares.append(shares_of(table))
        pairs.append(pairs_of(table))
        if (called, top_k) == ("digits", 2):
            [path] = save(result.plot()["align-kappa"], OUT / "kappa")
            shrink(path, path)
    write_csv(OUT / "shares.csv", pd.concat(shares, ignore_index=True))
    write_csv(OUT / "pairs.csv", pd.concat(pairs, ignore_index=True))


def shares_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per MoE layer, model and share; and what the models differ by."""
    rows = table[table["metric"].isin(SHARES)]
    columns = ["data", "k", "layer", "model", "share", "value", "ci_low", "ci_high", "images"]
    return rows.assign(share=rows["metric"].map(SHARES))[columns]


def pairs_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per MoE layer, model and number: the lowest and the highest pair of seeds."""
    rows = table[table["metric"].isin(PAIRS) & table["null"].isin(["", "pooled"])]
    grouped = rows.assign(number=rows["metric"].map(PAIRS)).groupby(
        ["data", "k", "layer", "model", "number"], sort=False
    )
    return grouped["value"].agg(pairs="size", lowest="min", highest="max").reset_index()


def checkpoints(data: str, top_k: int, seeds: int) -> list[Path]:
    """Return the trainings of all seeds of both models."""
    names = [f"{data}-{model}-k{top_k}-seed{seed}" for model in MODELS for seed in range(seeds)]
    places = {name: [folder / name for folder in FOLDERS if (folder / name).exists()] for name in names}
    if missing := [name for name, found in places.items() if not found]:
        raise api.UserError(
            f"Train {', '.join(missing)} first, by checkpoints/train.py (make reports-align)."
        )
    return [found[0] for found in places.values()]


def model_of(name: str) -> str:
    """Return the model that a line of a table is about, or that it is about both."""
    return DIFFERENCE if is_difference(name) else MODELS["prc" if "-prc-" in name else "baseline"]


if __name__ == "__main__":
    main()
