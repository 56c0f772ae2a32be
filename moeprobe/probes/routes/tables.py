"""Tokens per expert, by class and by position: from sums per image, block by block.

Axes: n images, J tokens, E experts, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprobe.inputs.data.checkerboard import COLORS
from moeprobe.metrics.color_bias import ColorBias
from moeprobe.metrics.information import Information
from moeprobe.metrics.stats.entries import Entries
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.replicates import MIN_IMAGES
from moeprobe.metrics.stats.statistic import Array, divide, error_of
from moeprobe.metrics.token_experts import color_bin, entries, num_tokens
from moeprobe.metrics.token_kinds import EXPERTS
from moeprobe.results.stored_cell import StoredCell

# What the columns of experts are called: of images drawn at random, and of checkerboards.
_NAMES = {Information.signature: "informed", ColorBias.signature: "board"}


def name_of(columns: Mapping[str, object]) -> str | None:
    """Return what columns of experts are called; None where there are none."""
    return next((name for signature, name in _NAMES.items() if signature in columns), None)


@dataclass(frozen=True)
class Load:
    """What the tokens of some images come to.

    Attributes:
        tokens: summed weights by expert ``(..., E)``.
        squares: over images, the squares of their sums by expert ``(..., E)``.
        products: of these sums with the image's tokens ``(..., E)``.
        own: squares of the images' tokens ``(...)``.
        images: how many have any token ``(...)``.
        majority: how many of them have most of their tokens at each expert ``(..., E)``; of a tie the lower one.
    """

    tokens: Array
    squares: Array
    products: Array
    own: Array
    images: Array
    majority: Array

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
        total: of all images ``(1, E)``.
        by_color: of checkerboards, by their colors ``(8, E)``; else None.
    """

    checkpoint: str
    layer: str
    tokens: str
    by_class: Load
    by_place: Load
    total: Load
    by_color: Load | None = None


def tables_of(cell: StoredCell, *, num_classes: int) -> Tables:
    """Return the tokens per expert of one cell, over all of its images."""
    parts = [_of_block(columns, num_classes) for _, columns in cell.blocks()]
    by_class, by_place, total = (sum(each[1:], each[0]) for each in zip(*parts, strict=True))
    colors = [_of_colors(columns) for _, columns in cell.blocks() if ColorBias.signature in columns]
    by_color = sum(colors[1:], colors[0]) if colors else None
    return Tables(cell.checkpoint, cell.cell.layer, cell.cell.tokens, by_class, by_place, total, by_color)


def expert_sums(columns: dict[str, np.ndarray]) -> Array:
    """Return each image's tokens by expert ``(n, E)``."""
    tokens, number = entries(columns, name=_name(columns))
    return tokens.per_image(len(columns[EXPERTS]), number)


def _of_block(columns: dict[str, np.ndarray], num_classes: int) -> tuple[Load, Load, Load]:
    name = _name(columns)
    tokens, number = entries(columns, name=name)
    places, labels = num_tokens(columns, name=name), columns["label"].astype(np.int64)
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
    by_place = Load(weight, square, weight, there, there, np.zeros_like(weight))
    return by_class, by_place, _load(sums, np.zeros(len(sums), dtype=np.int64), 1)


def _of_colors(columns: dict[str, np.ndarray]) -> Load:
    """Return the tokens of each of the checkerboards' colors."""
    tokens, number = entries(columns, name=_name(columns))
    bins = np.array([color_bin(*color) for color in COLORS.values()])
    order = np.argsort(bins)
    color = order[np.searchsorted(bins, columns[ColorBias.signature].astype(np.int64), sorter=order)]
    images = len(color)
    key = tokens.image * len(bins) + color[tokens.image, tokens.token]
    of_color = Entries(key, tokens.token, tokens.expert, tokens.weight)
    sums = of_color.per_image(images * len(bins), number)
    return _load(sums, np.tile(np.arange(len(bins)), images), len(bins))


def _name(columns: Mapping[str, object]) -> str:
    name = name_of(columns)
    assert name is not None
    return name


def _load(sums: Array, group: np.ndarray, number: int) -> Load:
    tokens = sums.sum(1)

    def add(values: Array) -> Array:
        out = np.zeros((number, *values.shape[1:]))
        np.add.at(out, group, values)
        return out

    there = (tokens > 0).astype(np.float64)
    most = np.eye(sums.shape[1])[sums.argmax(1)] * there[:, None]
    return Load(add(sums), add(sums**2), add(sums * tokens[:, None]), add(tokens**2), add(there), add(most))


def class_table(found: Sequence[Tables], names: Sequence[str]) -> pd.DataFrame:
    """Return the share of the tokens of each class that each expert has; of all classes where the class is empty.

    ``majority`` is the share of the class' images of whose tokens the expert has most.
    """
    rows = []
    for one in found:
        for load, labels in ((one.total, [""]), (one.by_class, names)):
            majority = load.majority / np.maximum(load.images, 1)[:, None]
            there = (share for number in np.flatnonzero(load.images) for share in majority[number].tolist())
            own = _rows(one, load, "class", labels)
            rows += [row | {"majority": share} for row, share in zip(own, there, strict=True)]
    return pd.DataFrame(rows)


def place_table(found: Sequence[Tables]) -> pd.DataFrame:
    """Return the share of the tokens at each place, numbered from 0, that each expert has."""
    rows = [row for one in found for row in _rows(one, one.by_place, "place", range(len(one.by_place.own)))]
    return pd.DataFrame(rows)


def color_table(found: Sequence[Tables]) -> pd.DataFrame:
    """Return the share of the patches of each color of checkerboards that each expert has; empty without boards."""
    parts = [(one, one.by_color) for one in found if one.by_color is not None]
    return pd.DataFrame([row for one, load in parts for row in _rows(one, load, "color", list(COLORS))])


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
