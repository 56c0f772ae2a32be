"""Handwritten digits that come with moeprobe: real data that need no download.

1,797 scans of 8x8 pixels with 17 gray levels (E. Alpaydin and C. Kaynak, UCI machine learning repository, test half
of "Optical Recognition of Handwritten Digits", CC BY 4.0), upscaled once so that crops have something to resample.
``digits.npz`` holds the rows of scikit-learn's ``load_digits`` in their order: importing scikit-learn for them would
take longer than most commands.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS, Example, ImageDataset, check_split
from moeprobe.runtime.seeds import generator

# levels (1797, 8, 8) from 0 to 16, and labels (1797,), as uint8.
_FILE = Path(__file__).with_suffix(".npz")
RESOLUTION = 32
_GRAY_LEVELS = 16
# 60 / 20 / 20 %, drawn once per class with this seed and never changed: results are comparable across versions.
_SPLIT_SEED = 20250101
_FRACTIONS = (0.6, 0.2)


class Digits(ImageDataset):
    """Handwritten digits (8x8 scans upscaled to 32x32), ten classes, fixed 60/20/20 split."""

    flippable = False

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        if location:
            raise UserError(f"'digits' comes with moeprobe and lies nowhere else; omit :{location}.")
        with np.load(_FILE) as arrays:
            levels, labels = arrays["levels"], arrays["labels"]
        rows = _split_rows(labels)[split]
        self._pixels = (levels[rows] * (255 / _GRAY_LEVELS)).round().astype(np.uint8)
        self._labels = labels[rows].astype(np.int64)
        # The row of the table names the image, so it is one name in any split.
        self.image_ids = [f"digits/{row:04d}" for row in rows]
        self.class_names = tuple(map(str, range(10)))

    def example(self, index: int) -> Example:
        """Return scan ``index``, upscaled bilinearly to 32x32 and repeated over three channels."""
        scan = Image.fromarray(self._pixels[index])
        image = scan.resize((RESOLUTION, RESOLUTION), Image.Resampling.BILINEAR).convert("RGB")
        return Example(image, self.image_ids[index], label=int(self._labels[index]))


def _split_rows(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sorted rows of each split, stratified by label."""
    parts: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rows = generator(_SPLIT_SEED, "digits split", str(label)).permutation(rows)
        ends = np.cumsum([round(fraction * len(rows)) for fraction in _FRACTIONS])
        for split, part in zip(SPLITS, np.split(rows, ends), strict=True):
            parts[split].append(part)
    return {split: np.sort(np.concatenate(part)) for split, part in parts.items()}
