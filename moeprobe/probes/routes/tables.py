"""Tokens per expert, by class and by position: from sums per image, block by block.

Axes: n images, J tokens, E experts, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from moeprobe.inputs.data.checkerboard import COLORS
from moeprobe.inputs.modality import AROUND
from moeprobe.judging.selection import Extreme
from moeprobe.metrics.analyses.color_bias import SAME_COLOR, SAME_PLACE, ColorBias
from moeprobe.metrics.analyses.information import Information
from moeprobe.metrics.analyses.modality import PERMUTED, PLAIN
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.key_routes import DISTINCT, LARGEST, SUPERCLASSES
from moeprobe.metrics.one_kind import EXCHANGED, ONE_KIND
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.entries import Entries
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Array, divide, error_of
from moeprobe.metrics.token_experts import color_bin, entries, num_tokens
from moeprobe.metrics.token_kinds import EXPERTS
from moeprobe.results.numbers import interval, number
from moeprobe.results.stored_cell import StoredCell

if TYPE_CHECKING:
    from pandas import DataFrame


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

    def __add__(self, second: "Load") -> "Load":
        """Return what both come to."""
        return Load(*(getattr(self, name) + getattr(second, name) for name in self.__dataclass_fields__))

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
    num_positions, labels = num_tokens(columns, name=name), columns["label"].astype(np.int64)
    sums = tokens.per_image(len(labels), number)
    labeled = labels >= 0
    by_class = _load(sums[labeled], labels[labeled], num_classes)
    # A place has one token per image, so the sum of squares over images is that of single weights.
    at = tokens.token * number + tokens.expert
    weight, square = (
        np.bincount(at, weights=values, minlength=num_positions * number)
        .reshape(num_positions, number)
        .astype(np.float64)
        for values in (tokens.weight, tokens.weight**2)
    )
    present = np.zeros((len(labels), num_positions), dtype=bool)
    present[tokens.image, tokens.token] = True
    image_counts = present.sum(0).astype(np.float64)
    by_place = Load(weight, square, weight, image_counts, image_counts, np.zeros_like(weight))
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

    image_counts = (tokens > 0).astype(np.float64)
    argmax_mass = np.eye(sums.shape[1])[sums.argmax(1)] * image_counts[:, None]
    return Load(
        add(sums),
        add(sums**2),
        add(sums * tokens[:, None]),
        add(tokens**2),
        add(image_counts),
        add(argmax_mass),
    )


def class_table(tables: Sequence[Tables], names: Sequence[str]) -> pd.DataFrame:
    """Return the share of the tokens of each class that each expert has; of all classes where the class is empty.

    ``majority`` is the share of the class' images of whose tokens the expert has most.
    """
    rows = []
    for layer_table in tables:
        for load, labels in ((layer_table.total, [""]), (layer_table.by_class, names)):
            majority = load.majority / np.maximum(load.images, 1)[:, None]
            image_counts = (
                share for number in np.flatnonzero(load.images) for share in majority[number].tolist()
            )
            class_rows = _rows(layer_table, load, "class", labels)
            rows += [row | {"majority": share} for row, share in zip(class_rows, image_counts, strict=True)]
    return pd.DataFrame(rows)


def place_table(tables: Sequence[Tables]) -> pd.DataFrame:
    """Return the share of the tokens at each place, numbered from 0, that each expert has."""
    rows = [
        row
        for layer_table in tables
        for row in _rows(layer_table, layer_table.by_place, "place", range(len(layer_table.by_place.own)))
    ]
    return pd.DataFrame(rows)


def color_table(tables: Sequence[Tables]) -> pd.DataFrame:
    """Return the share of the patches of each color of checkerboards that each expert has; empty without boards."""
    parts = [
        (layer_table, layer_table.by_color) for layer_table in tables if layer_table.by_color is not None
    ]
    return pd.DataFrame(
        [row for layer_table, load in parts for row in _rows(layer_table, load, "color", list(COLORS))]
    )


def _rows(layer_table: Tables, load: Load, key: str, names: Sequence[object]) -> list[dict[str, object]]:
    rows = []
    shares, errors, tokens = load.shares, load.errors, load.tokens.sum(-1)
    for index, name in enumerate(names):
        images = int(load.images[index])
        if not images:
            continue  # no text is that long, no image is of that class
        for expert, share in enumerate(shares[index].tolist()):
            low = high = float("nan")
            if images >= MIN_IMAGES:
                low, high = score_interval(share, error_of(errors[index, expert], images), images)
            rows.append(
                {
                    "checkpoint": layer_table.checkpoint,
                    "layer": layer_table.layer,
                    "tokens": layer_table.tokens,
                    key: name,
                    "expert": expert,
                    "value": share,
                    "ci_low": low,
                    "ci_high": high,
                    "images": images,
                    "trials": round(float(tokens[index])),
                }
            )
    return rows


# What the numbers of ``routes`` come to, in words.

Rows = Mapping[str, Mapping[str, Any]]
_KINDS = ("class", "position", "color")


def sentences(table: "DataFrame") -> list[str]:
    """Return what the experts of each layer say most about, and how many key routes the classes have."""
    token_rows = table[~table["tokens"].isin(AROUND)]
    tables = []
    for checkpoint in dict.fromkeys(token_rows["checkpoint"]):
        class_rows = token_rows[token_rows["checkpoint"] == checkpoint]
        for layer in dict.fromkeys(class_rows["layer"]):
            rows = {row["metric"]: row for row in class_rows[class_rows["layer"] == layer].to_dict("records")}
            tables += _boards(checkpoint, layer, rows) + _information(checkpoint, layer, rows)
            tables += _modality(checkpoint, layer, rows)
            tables += _routes(checkpoint, rows)
    return tables


def _boards(checkpoint: str, layer: str, rows: Rows) -> list[str]:
    if SAME_COLOR.name not in rows:
        return []
    parts = []
    for metric in (SAME_COLOR, SAME_PLACE):
        value, kappa = rows[metric.name], rows[f"{metric.name}{KAPPA}"]
        parts.append(f"{interval(value)} (κ {interval(kappa)})")
    return [
        f"{checkpoint}, {layer}: of two patches of one color {parts[0]} have the same expert, and of the places "
        f"{parts[1]} keep theirs when the colors are exchanged."
    ]


def _information(checkpoint: str, layer: str, rows: Rows) -> list[str]:
    information = [(kind, rows[f"{kind}_information"]) for kind in _KINDS if f"{kind}_information" in rows]
    information = [(kind, row) for kind, row in information if row["value"] == row["value"]]
    if len(information) < 2:
        return []
    information.sort(key=lambda item: -item[1]["value"])
    parts = [f"{kind} {interval(row)}" for kind, row in information]
    table = pd.DataFrame([row for _, row in information])
    extreme = Extreme.of(table, lowest=False, names=[kind for kind, _ in information])
    parts[0] += extreme.inserted()
    nothing = [kind for kind, row in information if row["ci_low"] <= 0]
    end = f"; on {' and '.join(nothing)}, no more than chance" if nothing else ""
    return [
        f"{checkpoint}, {layer}: a token's expert says most about {parts[0]}, then {', '.join(parts[1:])}{end}."
    ]


def _modality(checkpoint: str, layer: str, rows: Rows) -> list[str]:
    if PLAIN.name not in rows:
        return []
    level, alone, alone_level = (rows[metric.name] for metric in (EXCHANGED[0], *ONE_KIND[:2]))
    return [
        f"{checkpoint}, {layer}: the experts of image tokens and of words are {number(rows[PLAIN.name]['value'])} bits "
        f"apart (noise floor {number(rows[PERMUTED.name]['value'])}; with exchanged places {_level_text(level)}; p "
        f"{number(rows[EXCHANGED[1].name]['value'])}).",
        f"{checkpoint}, {layer}: {alone['value']:.0%} of the experts in use serve one kind nearly alone (with "
        f"exchanged places {_level_text(alone_level, share=True)}; p {number(rows[ONE_KIND[2].name]['value'])}).",
    ]


def _level_text(row: Mapping[str, Any], *, share: bool = False) -> str:
    mean, low, high = (
        f"{row[name]:.0%}" if share else number(row[name]) for name in ("value", "ci_low", "ci_high")
    )
    return f"{mean}, 95 % between {low} and {high}"


def _routes(checkpoint: str, rows: Rows) -> list[str]:
    if DISTINCT[0].name not in rows:
        return []
    parts = []
    for metrics in (DISTINCT, LARGEST):
        value, permuted, share = (rows[metric.name] for metric in metrics)
        by_chance = f"{number(permuted['value'], decimals=1)}, 95 % between {permuted['ci_low']:.0f} and "
        by_chance += f"{permuted['ci_high']:.0f}"
        parts.append((round(value["value"]), by_chance, number(share["value"])))
    (distinct, by_chance, p), (largest, also, q) = parts
    classes = round(rows[DISTINCT[0].name]["trials"])
    return [
        f"{checkpoint}: the {classes} classes have {distinct} different key routes (with permuted labels {by_chance}; "
        f"p {p}), and {largest} of them {'has' if largest == 1 else 'share'} the most common one ({also}; p {q}).",
        *_superclasses(checkpoint, rows),
    ]


def _superclasses(checkpoint: str, rows: Rows) -> list[str]:
    if SUPERCLASSES[0].name not in rows:
        return []
    value, permuted, p = (rows[metric.name] for metric in SUPERCLASSES)
    return [
        f"{checkpoint}: key routes follow the superclasses by an adjusted mutual information of "
        f"{number(value['value'])} (with superclasses permuted over the classes 95 % between "
        f"{number(permuted['ci_low'])} and {number(permuted['ci_high'])}; p {number(p['value'])})."
    ]
