"""Sums per image as a noise sweep of two checkpoints writes them, made up: any number of images without a model.

An image has its own steadiness, a patch its own preferred experts. Axes: n images, P patches, K choices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moeprobe.results import stored
from moeprobe.results.stored import concat, of_file, of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table

NAMES = ("a", "b")
ANALYSES = ("match", "set_match", "load")
ABOUT = About("made-up", "made-up", "test", 0, aligned=True, train_seeds={}, groups={})
_EXPERTS, _BLOCK = 32, 1024
Choices = NDArray[np.int16]


@dataclass(frozen=True)
class Size:
    """How much is made up."""

    images: int
    patches: int = 144
    layers: int = 1
    severities: int = 1
    top_k: int = 1

    @property
    def cells(self) -> int:
        """Cells of all checkpoints."""
        return self.layers * self.severities * len(NAMES)


def write(path: Path, size: Size) -> None:
    """Write the sums of both checkpoints."""
    parts = []
    for number, name in enumerate(NAMES):
        for start in range(0, size.images, _BLOCK):
            part = path.with_name(f"part-{name}-{start:06d}.parquet")
            sums = Accumulator()
            rows = range(start, min(start + _BLOCK, size.images))
            for cell, columns in _cells(rows, size, steadier=0.01 * number):
                sums.add(cell, [f"{row:06d}" for row in rows], columns)
            stored.write(part, of_table(image_table(sums, checkpoint=name)))
            parts.append(part)
    stored.write(path, concat(of_file(part) for part in parts))
    for part in parts:
        part.unlink()


def _cells(
    rows: range, size: Size, *, steadier: float
) -> Iterator[tuple[Cell, dict[str, NDArray[np.generic]]]]:
    rng = np.random.default_rng(rows.start)
    count = len(rows)
    own = rng.beta(8, 2, (count, 1))
    for layer in range(size.layers):
        reference = _choose(rng, count, size)
        for severity in range(size.severities):
            keep = rng.random((count, size.patches)) < own ** (severity / 5) + steadier
            view = np.where(keep[..., None], reference, _choose(rng, count, size))
            router = (f"blocks.{2 * layer + 1}", "softmax_token_choice", size.top_k, "gaussian_noise")
            yield Cell(*router, severity / 20, 0, "patch"), _columns(reference, view)


def _choose(rng: np.random.Generator, count: int, size: Size) -> Choices:
    """Choices ``(n, P, K)``: of each patch one of eight experts first, some of them more often, any others after it."""
    first = (
        7 * np.arange(size.patches) + np.minimum(*rng.integers(0, 8, (2, count, size.patches)))
    ) % _EXPERTS
    later = np.cumsum(rng.integers(1, _EXPERTS // size.top_k, (count, size.patches, size.top_k)), axis=2)
    later[..., 0] = 0
    return ((first[..., None] + later) % _EXPERTS).astype(np.int16)


def _columns(reference: Choices, view: Choices) -> dict[str, NDArray[np.generic]]:
    count, patches, top_k = reference.shape
    every, same = np.full(count, patches), reference == view
    columns: dict[str, NDArray[np.generic]] = {
        "label": np.zeros(count, dtype=np.int64),
        "trials": every,
        "top1_match": same[..., 0].sum(1),
        "reference_selected": reference,
        "view_selected": view,
        "experts": np.full(count, _EXPERTS),
        "unmoved": np.ones(count, dtype=np.int64),
        "set_pairs": every,
        "load": (view[..., 0, None] == np.arange(_EXPERTS)).sum(1),
    }
    if top_k > 1:
        sets = np.sort(reference) == np.sort(view)
        columns |= {f"top{top_k}_match": same.all(2).sum(1), f"top{top_k}_set_match": sets.all(2).sum(1)}
    return columns
