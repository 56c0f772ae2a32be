"""Checkerboards of two colors, whose cells are the patches of a model: what does a router go by, color or place?

Each of the 28 pairs of 8 colors makes two boards, the second with the colors exchanged; both are of one class, the
pair. Nothing is drawn at random, and the boards of all splits are the same.
"""

import itertools
import re

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, check_split

# The corners of the cube of red, green and blue.
COLORS = {
    "black": (0, 0, 0), "red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0),
    "magenta": (255, 0, 255), "cyan": (0, 255, 255), "white": (255, 255, 255),
}  # fmt: skip
_PAIRS = tuple(itertools.combinations(COLORS, 2))
_CELL, _CELLS = 8, 4
_MOST_PIXELS = 2048


class Checkerboard(ImageDataset):
    """Two-colored checkerboards, each also inverted; ``checkerboard:16x14`` has 14 x 14 cells of 16 pixels (8x4)."""

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        self.cell, self.cells = _parse(location)
        self.image_ids = [
            f"{split}/{left_class}-{right_class}"
            for pair in _PAIRS
            for left_class, right_class in (pair, pair[::-1])
        ]
        self.class_names = tuple(f"{left_class} and {right_class}" for left_class, right_class in _PAIRS)
        self._labels = [index // 2 for index in range(len(self.image_ids))]

    def example(self, index: int) -> Example:
        """Return board ``index``, in whose corner above on the left is its first color."""
        index = range(len(self.image_ids))[index]
        pair = _PAIRS[index // 2]
        colors = np.array([COLORS[name] for name in (pair[::-1] if index % 2 else pair)], dtype=np.uint8)
        board = np.add.outer(np.arange(self.cells), np.arange(self.cells)) % 2
        pixels = np.kron(board, np.ones((self.cell, self.cell), dtype=np.int64))
        return Example(Image.fromarray(colors[pixels]), self.image_ids[index], label=index // 2)


def _parse(location: str | None) -> tuple[int, int]:
    """Return the side of a cell in pixels, and how many cells a side of the board has."""
    if location is None:
        return _CELL, _CELLS
    match = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", location, re.ASCII)
    cell, cells = (0, 0) if match is None else (int(match[1]), int(match[2] or _CELLS))
    if cell < 1 or cells < 2 or cell * cells > _MOST_PIXELS:
        raise UserError(
            f"'checkerboard' takes the side of a cell in pixels, and the number of cells per side (2 or more), "
            f"{_MOST_PIXELS} pixels at most; got {location!r}. Write for example checkerboard:8 or checkerboard:16x14."
        )
    return cell, cells
