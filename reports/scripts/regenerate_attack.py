"""How far does the routing follow an attack on the answer, or on routes, and random changes of its norm?

    python -m reports.scripts.regenerate_attack

Attacks the committed digits checkpoints with k = 2, the two of a training seed at a time, so that
differences are paired: the answer at every epsilon; at the largest also routes, images crafted on the other
checkpoint, and clean routing replayed. Writes ``reports/attack/attack.csv`` and the figures of the first seed; about
20 minutes on one core.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from moeprobe import api
from moeprobe.results.folder import Result
from moeprobe.runtime.csv import write_csv

OUT, CHECKPOINTS = Path("reports/attack"), Path("checkpoints/reference")
SEEDS = (0, 1, 2)
STRONGEST = 8
# Each attack with its figures: the answer at every epsilon, and more at the largest.
RUNS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "answer": ({}, ("gradient-routing", "gradient-output")),
    "shown to the other": (
        {"epsilons": [0, STRONGEST], "transfer": True, "attribute": "recomputed"},
        ("transfer",),
    ),
    "routes": ({"epsilons": [0, STRONGEST], "on": "routes"}, ()),
}
_METRICS = ("top1_match", "top1_match_kappa", "accuracy", "prediction_agreement")
_AT_STRONGEST = ("top2_set_match", "accuracy_perturbed_clean", "accuracy_switching")
_COLUMNS = [
    "train_seed", "checkpoint", "reference", "view", "severity", "layer", "metric", "null", "value", "ci_low",
    "ci_high", "images", "trials",
]  # fmt: skip
_PLACE = ["checkpoint", "reference", "view", "severity", "layer", "metric", "null"]


def main() -> None:
    """Measure, seed by seed, and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    tables = []
    for seed in SEEDS:
        for name, (_, figures) in RUNS.items():
            result = measured(seed, name)
            tables.append(numbers(result, seed))
            if seed == SEEDS[0]:
                draw(result, figures)
    write_csv(OUT / "attack.csv", joined(tables))


def measured(seed: int, run: str, *, limit: int | None = None) -> Result:
    """Return the result of the two models of a seed, that without PRC first."""
    models = [CHECKPOINTS / f"digits-{name}-k2-seed{seed}" for name in ("baseline", "prc")]
    return api.attack(models, device="cpu", limit=limit, **RUNS[run][0])


def draw(result: Result, figures: tuple[str, ...]) -> None:
    """Write the figures with these names."""
    for name, figure in result.plot().items():
        for file in figures:
            if file.endswith(name):
                figure.savefig(OUT / f"{file}.png", dpi=100)


def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all runs; what several of them measured, random changes above all, stands there once."""
    table = pd.concat(tables).drop_duplicates(["train_seed", *_PLACE])
    return table.sort_values(["train_seed", *_PLACE], kind="stable")


def numbers(result: Result, seed: int) -> pd.DataFrame:
    """Return a row per model, epsilon, layer and number of patches or of the output; then those of the difference."""
    return pd.concat([_kept(result.table, seed), _kept(result.comparison, seed)])[_COLUMNS]


def _kept(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    words = ("tokens", "null", "layer", "reference")
    table = table.assign(reference=table.get("reference", "")).fillna(dict.fromkeys(words, ""))
    kept = table[
        table["metric"].isin(_METRICS) & table["tokens"].isin(["patch", ""]) & (table["severity"] > 0)
        | table["metric"].isin(_AT_STRONGEST)
        & table["tokens"].isin(["patch", ""])
        & (table["severity"] == STRONGEST)
    ]
    return kept[kept["null"].isin(["", "pooled", "image"])].assign(train_seed=seed)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    main()
