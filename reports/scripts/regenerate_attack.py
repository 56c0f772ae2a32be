"""How far does the routing follow an attack on the answer, and a change of the same size at random?

    python -m reports.scripts.regenerate_attack

Attacks the committed digits checkpoints with k = 2, the two of a training seed at a time, so that
differences are paired. Writes ``reports/attack/attack.csv`` and the figures of the first seed; about ten minutes on one
core.
"""

from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.probes.attack import DIRECTIONS
from moeprobe.results.folder import Result
from moeprobe.runtime.csv import write_csv

OUT, CHECKPOINTS = Path("reports/attack"), Path("checkpoints/reference")
SEEDS = (0, 1, 2)
_METRICS = ("top1_match", "top1_match_kappa", "accuracy", "prediction_agreement")
_COLUMNS = [
    "train_seed", "checkpoint", "reference", "view", "severity", "layer", "metric", "null", "value", "ci_low",
    "ci_high", "images", "trials",
]  # fmt: skip


def main() -> None:
    """Measure, seed by seed, and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    found = []
    for seed in SEEDS:
        for direction in DIRECTIONS:
            result = measured(seed, direction)
            found.append(numbers(result, seed))
            if seed == SEEDS[0]:
                for name, figure in result.plot().items():
                    figure.savefig(OUT / f"{direction}-{name}.png", dpi=100)
    write_csv(OUT / "attack.csv", pd.concat(found))


def measured(seed: int, direction: str, *, limit: int | None = None) -> Result:
    """Return the result of the two models of a seed, that without PRC first."""
    models = [CHECKPOINTS / f"digits-{name}-k2-seed{seed}" for name in ("baseline", "prc")]
    return api.attack(models, direction=direction, device="cpu", limit=limit)


def numbers(result: Result, seed: int) -> pd.DataFrame:
    """Return a row per model, epsilon, layer and number of patches or of the output; then those of the difference."""
    return pd.concat([_kept(result.table, seed), _kept(result.comparison, seed)])[_COLUMNS]


def _kept(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    words = ("tokens", "null", "layer", "reference")
    table = table.assign(reference=table.get("reference", "")).fillna(dict.fromkeys(words, ""))
    kept = table[
        table["metric"].isin(_METRICS) & table["tokens"].isin(["patch", ""]) & (table["severity"] > 0)
    ]
    return kept[kept["null"].isin(["", "pooled", "image"])].assign(train_seed=seed)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    main()
