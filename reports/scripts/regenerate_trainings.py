"""What PRC changes over other trainings and other images, on digits and shapes.

    python -m reports.scripts.regenerate_trainings

For each k the three committed pairs of checkpoints (V-MoE, and V-MoE with PRC) run over all test images: accuracy, and
the match of two crops. ``moeprobe compare`` makes the claims about trainings, over seeds and images at once. Writes
``reports/trainings/DATA.csv``: the sums per image that the claims follow from are too large for git.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from moeprobe import api
from moeprobe.results.columns import TRAININGS_COLUMNS
from moeprobe.runtime.files import write_csv

OUT, CHECKPOINTS = Path("reports/trainings"), Path("checkpoints/reference")
SEEDS, TOP_KS, OBJECTIVES = (0, 1, 2), (2, 1), ("baseline", "prc")
VIEWS = ("random_crop", "prc_crops")
_LEFT_OUT = {"judgement", "margin"}
COLUMNS = ["top_k", *(name for name in TRAININGS_COLUMNS if name not in _LEFT_OUT)]


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    for data in ("digits", "shapes"):
        claims = [rows for top_k in TOP_KS for rows in claims_of(data, top_k)]
        write_csv(OUT / f"{data}.csv", pd.concat(claims, ignore_index=True))


def claims_of(data: str, top_k: int, *, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of the output, and of patches in each view, for one k."""
    models = [CHECKPOINTS / f"{data}-{kind}-k{top_k}-seed{seed}" for kind in OBJECTIVES for seed in SEEDS]
    options: dict[str, Any] = {"data": data, "limit": limit, "device": "cpu", "figures": False}
    metrics = {"accuracy", *(f"top{k}_{match}" for k in {1, top_k} for match in _matches(k))}
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / name for name in ("eval", *VIEWS)]
        api.evaluate(models, out=runs[0], **options)
        for view, out in zip(VIEWS, runs[1:], strict=True):
            api.match_ratio(models, view=view, out=out, **options)
        for run in runs:
            claims = api.compare(run).trainings
            claims = claims[claims["metric"].isin(metrics) & claims["tokens"].isin(["patch", ""])]
            claims = claims[claims["null"].isin(["", "pooled", "image"])]
            yield claims.assign(top_k=top_k)[COLUMNS]


def _matches(k: int) -> tuple[str, str]:
    """Return the match of the experts that process a token, and of its first one, with κ."""
    return ("match", "match_kappa") if k == 1 else ("set_match", "set_match_kappa")


if __name__ == "__main__":
    main()
