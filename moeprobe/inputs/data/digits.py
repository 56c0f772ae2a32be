"""Scikit-learn's bundled handwritten digits: real data that need no download.

1,797 scans of 8x8 pixels with 17 gray levels (E. Alpaydin and C. Kaynak, UCI machine learning repository, test half
of "Optical Recognition of Handwritten Digits"), upscaled once so that crops have something to resample.
"""

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS, Example, ImageDataset, check_split
from moeprobe.runtime.seeds import generator

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
            raise UserError(f"'digits' comes with scikit-learn and lies nowhere else; omit :{location}.")
        from sklearn.datasets import load_digits

        bundle = load_digits()
        rows = _split_rows(bundle.target)[split]
        self._pixels = (bundle.images[rows] * (255 / _GRAY_LEVELS)).round().astype(np.uint8)
        self._labels = bundle.target[rows]
        # The row of scikit-learn's table names the image, so it is one name in any split.
        self.image_ids = [f"digits/{row:04d}" for row in rows]
        self.class_names = tuple(str(name) for name in bundle.target_names)

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
