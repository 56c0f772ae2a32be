"""Accuracy and routing under the 19 corruptions, of V-MoE and V-MoE with PRC on digits.

    python -m reports.scripts.regenerate_corruptions

For each seed both committed checkpoints (k = 2) run over the same ``IMAGES`` test images under every corruption at
``SEVERITIES``, as ``moeprobe corruptions`` does. Writes ``reports/corruptions/digits.csv``: accuracy and κ of the sets
(against the pooled chance level) of each corruption, of each family and of all, means over severities, with 95 %
intervals over images; and the paired differences, PRC less V-MoE.
"""

from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.runtime.files import write_csv
from reports.scripts.objectives import MODELS

OUT, CHECKPOINTS = Path("reports/corruptions"), Path("checkpoints/reference")
SEEDS, SEVERITIES, IMAGES = (0, 1, 2), (1, 3, 5), 100
DIFFERENCE = "difference"
_COLUMNS = ["seed", "model", "view", "metric", "layer", "value", "ci_low", "ci_high", "images", "trials"]
_METRICS = ("accuracy", "top2_set_match_kappa")


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    write_csv(OUT / "digits.csv", pd.concat([of_seed("digits", seed) for seed in SEEDS], ignore_index=True))


def of_seed(data: str, seed: int, *, limit: int = IMAGES) -> pd.DataFrame:
    """Return the rows of both models of a seed, and of their difference."""
    names = [f"{data}-{kind}-k2-seed{seed}" for kind in MODELS]
    result = api.corruptions(
        [CHECKPOINTS / name for name in names],
        data=data,
        severities=SEVERITIES,
        controls=False,
        limit=limit,
        device="cpu",
        figures=False,
    )
    assert result.comparison is not None
    called = dict(zip(names, MODELS.values(), strict=True))
    values = result.table.assign(model=result.table["checkpoint"].map(called))
    rows = pd.concat([values, result.comparison.assign(model=DIFFERENCE)])
    rows = rows[rows["metric"].isin(_METRICS) & rows["null"].isin(["", "pooled"])]
    rows = rows[rows["tokens"].isin(["", "patch"]) & (rows["severity"].isna() | rows["view"].eq("clean"))]
    return rows.assign(seed=seed)[_COLUMNS]


if __name__ == "__main__":
    main()
