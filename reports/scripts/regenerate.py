"""Regenerate ``reports/digits`` and ``reports/shapes`` from the checkpoints committed in ``checkpoints/reference``.

    make reports

For each data set what ``moeprobe paper`` makes: every table and figure for the checkpoints of the first training seed,
the numbers of all seeds in ``seeds.csv`` and ``load.csv``, and ``tables.md``. Training seeds are points, each with its
interval over images; they are never pooled. On one machine the same checkpoints give the same CSVs. ``pages.py`` then
puts the numbers into the README and docs/results.
"""

import shutil
import sys
from pathlib import Path

import torch
from PIL import Image

from moeprobe import api
from reports.scripts.objectives import MODELS
from reports.scripts.printed import in_256_colors

SEEDS, TOP_KS, OBJECTIVES = (0, 1, 2), (2, 1), tuple(MODELS)
NAMES = tuple(MODELS.values())
# Relative, since the sidecars remember where things lay: run this in the root of the checkout.
REPORTS = Path("reports")
CHECKPOINTS = Path("checkpoints/reference")
# Large, and made again by anyone in minutes: what is kept is what is read.
DROPPED = ("images.parquet", "overlay-*-0??.png", ".moeprobe.*")
# In bytes: a picture that is larger gets a palette.
LARGE = 2**18
REMARKS = (
    "Tables 2 and 3 must not be compared with each other here: k = 1 is the finished k = 2 model, trained on for a "
    "third of its epochs with its head kept, and k = 2 got no such extra epochs. In the paper both k are fine-tuned "
    "from one model that was pretrained with k = 2, at a higher resolution.",
    "The models have 0.4 million parameters. PRC's weights λ are ten times the paper's; the baseline is trained "
    "without mixup, unlike the paper's.",
)


def main(families: list[str]) -> None:
    """Probe and write, one data set after the other."""
    # How products are cut into threads shows in their last digits, and with them in every CSV.
    torch.set_num_threads(1)
    for data in families:
        regenerate(data)


def regenerate(data: str) -> None:
    """Write ``reports/DATA``."""
    # Beside the committed folder, which is replaced at the end: its absence would make the commit look changed.
    staging = REPORTS / f"{data}.new"
    shutil.rmtree(staging, ignore_errors=True)
    models = [
        CHECKPOINTS / f"{data}-{objective}-k{top_k}-seed{seed}"
        for top_k in TOP_KS
        for seed in SEEDS
        for objective in OBJECTIVES
    ]
    options = api.Options(out=staging, device="cpu", command="make reports")
    api.paper(models, data=data, names=NAMES, remarks=REMARKS, options=options)
    replace(staging, REPORTS / data)


def replace(staging: Path, report: Path) -> None:
    """Put a new report in the place of the committed one, without what is not kept."""
    for pattern in DROPPED:
        for path in staging.rglob(pattern):
            path.unlink()
    for path in staging.rglob("*.png"):
        if path.stat().st_size > LARGE:
            in_a_palette(path)
    shutil.rmtree(report, ignore_errors=True)
    staging.rename(report)


def in_a_palette(path: Path) -> None:
    """Give a picture of a file 256 colors."""
    with Image.open(path) as picture:
        in_256_colors(picture).save(path, optimize=True, dpi=picture.info["dpi"])


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits", "shapes"])
