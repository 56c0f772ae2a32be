"""Critical noise, and flips as margins predict them, of the committed digits checkpoints with k = 2.

    python -m reports.scripts.regenerate_critical

Runs ``moeprobe margins`` on each pair of checkpoints with the same training seed, with the flips under a blur and in
bfloat16 beside those under noise. Writes ``reports/margins/digits-critical.csv``: of all patches, values of both models
and their difference, paired by image; of the weakest noise, flips in each bin of the prediction, too. Half a minute.
"""

from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.probes.margins import BFLOAT16
from moeprobe.runtime.files import write_csv
from reports.scripts.objectives import MODELS

OUT, CHECKPOINTS = Path("reports/margins"), Path("checkpoints/reference")
SEEDS, SIGMAS = (0, 1, 2), (0.05, 0.1, 0.2, 0.4)
BLUR = "gaussian_blur"
KEYS = ["train_seed", "model", "kind", "layer", "view", "severity", "tokens", "metric"]
METRICS = (
    "selection_margin_logit",
    "margin_sensitivity",
    "margin_over_sensitivity",
    "critical_sigma_median",
    "critical_sigma_mean",
    "flip_rate",
    "flip_rate_predicted",
    "flip_ece",
    "flip_ece_floor",
    "flip_brier",
    "flip_brier_rate",
    "flip_auroc",
    "flip_auroc_margin",
)


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    write_csv(OUT / "digits-critical.csv", pd.concat(map(critical, SEEDS), ignore_index=True))


def critical(seed: int, *, limit: int | None = None) -> pd.DataFrame:
    """Return the rows of a training seed: a value per model, layer, level of noise and number, and differences."""
    pair = [CHECKPOINTS / f"digits-{name}-k2-seed{seed}" for name in MODELS]
    runs = [
        api.margins(pair, data="digits", transfer=BLUR, limit=limit),
        api.margins(pair, data="digits", transfer=BFLOAT16, sigmas=SIGMAS[:1], limit=limit),
    ]
    [noise, bfloat16] = [_rows(run, seed) for run in runs]
    return pd.concat([noise, bfloat16[bfloat16["view"] == BFLOAT16]])


def _rows(run: api.Result, seed: int) -> pd.DataFrame:
    """Return the rows of the values and of the differences, in a few columns."""
    assert run.comparison is not None
    kinds = [run.table.assign(kind="value"), run.comparison.assign(kind="difference")]
    rows = pd.concat(kinds, ignore_index=True)
    is_bin = rows["tokens"].str.startswith("predicted") & (rows["metric"] == "flip_rate")
    is_bin &= (rows["severity"] == SIGMAS[0]) & (rows["kind"] == "value")
    is_level = rows["severity"].isna() | rows["severity"].isin(SIGMAS) | (rows["view"] == BLUR)
    rows = rows[rows["metric"].isin(METRICS) & (is_bin | (rows["tokens"] == "patch")) & is_level]
    names = {f"digits-{name}-k2-seed{seed}": model for name, model in MODELS.items()}
    rows = rows.assign(train_seed=seed, model=rows["checkpoint"].map(names))
    return rows[[*KEYS, "value", "ci_low", "ci_high", "trials", "images"]]


if __name__ == "__main__":
    main()
