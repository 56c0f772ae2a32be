"""Tokens per expert, by class and by position: from sums per image, block by block.

Axes: n images, J tokens, E experts, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.replicates import MIN_IMAGES
from moeprobe.metrics.stats.statistic import Array, divide, error_of
from moeprobe.metrics.token_experts import entries, num_tokens
from moeprobe.metrics.token_kinds import EXPERTS
from moeprobe.results.stored_cell import StoredCell

NAME = "informed"


@dataclass(frozen=True)
class Load:
    """What the tokens of some images come to.

    Attributes:
        tokens: summed weights by expert ``(..., E)``.
        squares: over images, the squares of their sums by expert ``(..., E)``.
        products: of these sums with the image's tokens ``(..., E)``.
        own: squares of the images' tokens ``(...)``.
        images: how many have any token ``(...)``.
    """

    tokens: Array
    squares: Array
    products: Array
    own: Array
    images: Array

    def __add__(self, other: "Load") -> "Load":
        """Return what both come to."""
        return Load(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def shares(self) -> Array:
        """Share of the tokens that each expert has ``(..., E)``; NaN without any token."""
        return divide(self.tokens, self.tokens.sum(-1, keepdims=True))

    @property
    def errors(self) -> Array:
        """Standard error over images of each share ``(..., E)``, by the delta method; before ``error_of``."""
        share = self.shares
        squares = self.squares - 2 * share * self.products + share**2 * self.own[..., None]
        return divide(np.maximum(squares, 0.0), self.tokens.sum(-1, keepdims=True) ** 2)


@dataclass(frozen=True)
class Tables:
    """One layer of one checkpoint: its experts' tokens by class and by place.

    Attributes:
        checkpoint: its name.
        layer: its name.
        tokens: patch or token.
        by_class: of images with a label ``(C, E)``.
        by_place: of all images ``(J, E)``.
        total: of all images ``(E)``.
    """

    checkpoint: str
    layer: str
    tokens: str
    by_class: Load
    by_place: Load
    total: Load


def tables_of(cell: StoredCell, *, num_classes: int) -> Tables:
    """Return the tokens per expert of one cell, over all of its images."""
    parts = [_of_block(columns, num_classes) for _, columns in cell.blocks()]
    by_class, by_place, total = (sum(each[1:], each[0]) for each in zip(*parts, strict=True))
    return Tables(cell.checkpoint, cell.cell.layer, cell.cell.tokens, by_class, by_place, total)


def expert_sums(columns: dict[str, np.ndarray]) -> Array:
    """Return each image's tokens by expert ``(n, E)``."""
    tokens, number = entries(columns, name=NAME)
    return tokens.per_image(len(columns[EXPERTS]), number)


def _of_block(columns: dict[str, np.ndarray], num_classes: int) -> tuple[Load, Load, Load]:
    tokens, number = entries(columns, name=NAME)
    places, labels = num_tokens(columns, name=NAME), columns["label"].astype(np.int64)
    sums = tokens.per_image(len(labels), number)
    labeled = labels >= 0
    by_class = _load(sums[labeled], labels[labeled], num_classes)
    # Of one token of an image a square is its weight's own.
    at = tokens.token * number + tokens.expert
    weight, square = (
        np.bincount(at, weights=values, minlength=places * number).reshape(places, number).astype(np.float64)
        for values in (tokens.weight, tokens.weight**2)
    )
    present = np.zeros((len(labels), places), dtype=bool)
    present[tokens.image, tokens.token] = True
    there = present.sum(0).astype(np.float64)
    by_place = Load(weight, square, weight, there, there)
    return by_class, by_place, _load(sums, np.zeros(len(sums), dtype=np.int64), 1)


def _load(sums: Array, group: np.ndarray, number: int) -> Load:
    tokens = sums.sum(1)

    def add(values: Array) -> Array:
        out = np.zeros((number, *values.shape[1:]))
        np.add.at(out, group, values)
        return out

    return Load(
        add(sums),
        add(sums**2),
        add(sums * tokens[:, None]),
        add(tokens**2),
        add((tokens > 0).astype(np.float64)),
    )


def class_table(found: Sequence[Tables], names: Sequence[str]) -> pd.DataFrame:
    """Return the share of the tokens of each class that each expert has; of all classes where the class is empty."""
    rows = []
    for one in found:
        for load, labels in ((one.total, [""]), (one.by_class, names)):
            rows += _rows(one, load, "class", labels)
    return pd.DataFrame(rows)


def place_table(found: Sequence[Tables]) -> pd.DataFrame:
    """Return the share of the tokens at each place, numbered from 0, that each expert has."""
    rows = [row for one in found for row in _rows(one, one.by_place, "place", range(len(one.by_place.own)))]
    return pd.DataFrame(rows)


def _rows(one: Tables, load: Load, key: str, names: Sequence[object]) -> list[dict[str, object]]:
    rows = []
    shares, errors, tokens = load.shares, load.errors, load.tokens.sum(-1)
    for number, name in enumerate(names):
        images = int(load.images[number])
        if not images:
            continue  # no text is that long, no image is of that class
        for expert, share in enumerate(shares[number].tolist()):
            low = high = float("nan")
            if images >= MIN_IMAGES:
                low, high = score_interval(share, error_of(errors[number, expert], images), images)
            rows.append(
                {
                    "checkpoint": one.checkpoint,
                    "layer": one.layer,
                    "tokens": one.tokens,
                    key: name,
                    "expert": expert,
                    "value": share,
                    "ci_low": low,
                    "ci_high": high,
                    "images": images,
                    "trials": round(float(tokens[number])),
                }
            )
    return rows
