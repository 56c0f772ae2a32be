"""Whether the routers of the committed checkpoints choose better than at random, and what PRC changes about it.

    python -m reports.scripts.regenerate_regret

Runs ``moeprobe regret`` on the three pairs of checkpoints (V-MoE, and V-MoE with PRC) of digits and of shapes, with
k = 1 and 2, once with experts weighed as the router does and once at equal weights. All options of a token are tried.
Writes ``values.csv``, ``trainings.csv`` (differences over trainings and images) and a figure to ``reports/regret``.
Ten minutes.
"""

import itertools
import tempfile
from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.probes.regret import EQUAL, ROUTER
from moeprobe.results.figures import save
from moeprobe.runtime.files import write_csv
from reports.scripts import regret_tables
from reports.scripts.printed import shrink
from reports.scripts.regenerate_trainings import CHECKPOINTS, OBJECTIVES, SEEDS

OUT = Path("reports/regret")
DATA, TOP_KS, WEIGHTS = ("digits", "shapes"), (1, 2), (ROUTER, EQUAL)
# Of an image in each layer; and at least as many options as k = 2 of 8 experts have.
PATCHES, TRIED = 4, 12
# Each with its null.
NUMBERS = (
    ("choice_rank_kappa", "option"),
    ("choice_right", ""),
    ("choice_right_chance", "option"),
    ("choice_regret", ""),
    ("choice_regret_random", ""),
    ("choice_correlation", ""),
    ("choice_stakes", ""),
)
_VALUES = [
    "checkpoint",
    "train_seed",
    "layer",
    "tokens",
    "metric",
    "value",
    "ci_low",
    "ci_high",
    "images",
    "trials",
    "carriers",
]
# What is the same in all rows, or empty.
_LEFT_OUT = ["checkpoint", "reference", "view", "severity", "null", "margin"]
# More digits are noise of the machine.
_DIGITS = 6


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    found = [measure(*asked) for asked in itertools.product(DATA, TOP_KS, WEIGHTS)]
    for name, tables in zip(("values", "trainings"), zip(*found, strict=True), strict=True):
        write_csv(OUT / f"{name}.csv", pd.concat(tables, ignore_index=True))
    [path] = save(regret_tables.figure(OUT), OUT / "ranks")
    shrink(path, path)


def measure(
    data: str, top_k: int, weights: str, *, limit: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the values of all models with k experts per token, and their differences over trainings and images."""
    models = [f"{data}-{kind}-k{top_k}-seed{seed}" for kind in OBJECTIVES for seed in SEEDS]
    with tempfile.TemporaryDirectory() as folder:
        run, compared = Path(folder) / "run", Path(folder) / "compared"
        api.regret(
            [CHECKPOINTS / name for name in models], data=data, patches=PATCHES, tried=TRIED, weights=weights,
            limit=limit, out=run, device="cpu", figures=False,
        )  # fmt: skip
        api.compare([run], out=compared, figures=False)
        return tables(run, compared, data=data, top_k=top_k, weights=weights)


def tables(run: Path, compared: Path, **about: str | int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the numbers of a run, and of its comparison over trainings, that the page is about.

    Args:
        run: folder of a finished run of ``regret``.
        compared: folder of its comparison.
        about: data, k and weights, for columns of their own.
    """
    values, trainings = (kept(pd.read_csv(path)) for path in (run / "table.csv", compared / "trainings.csv"))
    trainings = trainings.drop(columns=_LEFT_OUT)
    return values[_VALUES].assign(**about).round(_DIGITS), trainings.assign(**about).round(_DIGITS)


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the numbers that the page is about."""
    numbers = pd.MultiIndex.from_arrays([table["metric"], table["null"].fillna("")])
    return table[numbers.isin(NUMBERS) & table["tokens"].isin(["patch", "prefix"])]


if __name__ == "__main__":
    main()
