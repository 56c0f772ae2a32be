"""Few shots of another data set: what features learned on shapes are good for on digits, and the reverse.

    python -m reports.scripts.regenerate_transfer

"Routers in Vision MoE" (Liu et al., 3.3) measures ten shots on another data set than that of the training. Here the
committed checkpoints of either data set are given ten shots per class of the other. Writes ``reports/transfer/TO.csv``:
the accuracy by model, k and seed, by chance, and PRC minus V-MoE of the same seed, image by image.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.runtime.files import write_csv

OUT, CHECKPOINTS = Path("reports/transfer"), Path("checkpoints/reference")
OTHER = {"digits": "shapes", "shapes": "digits"}
SEEDS, TOP_KS, SHOTS = (0, 1, 2), (2, 1), 10
# Of shapes a part of the 2,000 test images: they are judged ten times over.
LIMITS: dict[str, int | None] = {"digits": None, "shapes": 500}
METRICS = {"fewshot_accuracy": "accuracy", "fewshot_accuracy_chance": "by chance"}
_KEPT = ["value", "ci_low", "ci_high", "images"]


def main(targets: list[str]) -> None:
    """Measure and write, one data set after the other."""
    torch.set_num_threads(1)
    for data in targets:
        write_csv(OUT / f"{data}.csv", transferred(data, limit=LIMITS[data]))


def transferred(data: str, *, limit: int | None = None) -> pd.DataFrame:
    """Return a row per k, seed and number of models that were trained on the other data set, judged on ``data``."""
    rows = []
    for top_k in TOP_KS:
        for seed in SEEDS:
            names = [f"{OTHER[data]}-{one}-k{top_k}-seed{seed}" for one in ("baseline", "prc")]
            found = api.fewshot(
                [CHECKPOINTS / name for name in names], data=data, shots=[SHOTS], limit=limit, device="cpu"
            )
            about = {"trained_on": OTHER[data], "top_k": top_k, "seed": seed, "shots": SHOTS}
            assert found.comparison is not None
            for kind, every in (("value", found.table), ("difference", found.comparison)):
                table = every[every["draw"].isna()]
                for metric, number in METRICS.items():
                    own = table[(table["metric"] == metric) & table["severity"].eq(SHOTS)]
                    for row in own.to_dict("records"):
                        model = "V-MoE" if row["checkpoint"] == names[0] else "V-MoE with PRC"
                        kept = {name: row[name] for name in _KEPT}
                        rows.append(about | {"kind": kind, "model": model, "number": number} | kept)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(OTHER))
