"""Which experts see pictures: the choices of image tokens and of words, by expert, and with exchanged places.

Axes: n pictures, J places of a sequence (image tokens, then words), E experts, D permutations.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moeprobe.metrics.analyses.modality import ModalityAnalysis, choices_of
from moeprobe.metrics.declaration import Metric, NumberName
from moeprobe.metrics.one_kind import ALONE, EXCHANGED, ONE_KIND
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES, Replicates
from moeprobe.metrics.stats.entries import sum_by_key
from moeprobe.metrics.stats.information import information, shares_by_code
from moeprobe.metrics.stats.permutations import compare_with
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Array, divide, error_of
from moeprobe.metrics.token_kinds import num_experts
from moeprobe.results.stored_cell import Arrays, StoredCell
from moeprobe.results.summaries import About, row
from moeprobe.runtime.seeds import generator

PERMUTATIONS = 1000
# Rounding of sums must not take an expert off the limit.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ModalityTable:
    """One layer of one checkpoint: how its experts divide between image tokens and words.

    Attributes:
        checkpoint: its name.
        layer: its name.
        use: share of the choices of image tokens, and of words, that each expert has ``(2, E)``.
        errors: standard errors of ``image_shares`` over pictures ``(E,)``; NaN where too few vary.
        images: how many pictures.
        trials: tokens of both kinds in all pictures.
        divergence: Jensen-Shannon divergence of the two rows of ``use``, in bits.
        one_kind: share of the experts in use that serve one kind alone.
        permuted: both numbers with the places exchanged ``(D, 2)``.
    """

    checkpoint: str
    layer: str
    use: Array
    errors: Array
    images: int
    trials: int
    divergence: float
    one_kind: float
    permuted: Array

    @property
    def image_shares(self) -> Array:
        """Share of an expert's choices that image tokens make, both kinds weighed alike ``(E,)``; NaN without any."""
        return _image_shares(self.use)

    def rows(self, cell: StoredCell, info: About) -> Iterator[dict[str, Any]]:
        """Yield the lines of the table about exchanged places, and about experts of one kind."""

        def line(name: str, value: float, **more: object) -> dict[str, Any]:
            replicates = Replicates(value, np.empty(0), images=self.images, trials=self.trials)
            return (
                row(info, self.checkpoint, cell.cell, NumberName(name, ""), replicates) | {"flag": ""} | more
            )

        def level(metrics: tuple[Metric, ...], column: int, observed: float) -> Iterator[dict[str, Any]]:
            mean, low, high, p = compare_with(self.permuted[:, column], observed)
            yield line(metrics[0].name, mean, ci_low=low, ci_high=high, interval="permutations")
            yield line(metrics[1].name, p)

        yield from level(EXCHANGED, 0, self.divergence)
        yield line(ONE_KIND[0].name, self.one_kind)
        yield from level(ONE_KIND[1:], 1, self.one_kind)


def modality_table(cell: StoredCell, *, seed: int) -> ModalityTable | None:
    """Return how the experts of a cell divide between image tokens and words; None where it holds no words."""
    if ModalityAnalysis.signature not in next(cell.blocks())[1]:
        return None
    parts = [_by_place(columns) for _, columns in cell.blocks()]
    by_place: Array = np.sum([part for part, _, _ in parts], axis=0)
    words, trials = parts[0][1], sum(number for _, _, number in parts)
    use = _use(by_place, words[None])[0]
    number_of = np.stack([~words, words]) @ by_place.sum(1)
    squares = [np.square(_influences(columns, use, number_of)).sum(0) for _, columns in cell.blocks()]
    exchanged = _use(by_place, _exchanged_words(words, seed=seed))
    numbers = np.stack([_divergence(exchanged), _one_kind(exchanged)], 1)
    return ModalityTable(
        checkpoint=cell.checkpoint,
        layer=cell.cell.layer,
        use=use,
        errors=np.array([error_of(float(square), cell.num_images) for square in np.sum(squares, axis=0)]),
        images=cell.num_images,
        trials=trials,
        divergence=float(_divergence(use[None])[0]),
        one_kind=float(_one_kind(use[None])[0]),
        permuted=numbers,
    )


def modality_frame(tables: Sequence[ModalityTable]) -> pd.DataFrame:
    """Return the share of each expert's choices that image tokens make, and the two shares that it follows from."""
    rows = []
    for table in tables:
        for expert, share in enumerate(table.image_shares.tolist()):
            low = high = float("nan")
            if table.images >= MIN_IMAGES and share == share:
                low, high = score_interval(share, float(table.errors[expert]), table.images)
            rows.append(
                {
                    "checkpoint": table.checkpoint,
                    "layer": table.layer,
                    "expert": expert,
                    "value": share,
                    "ci_low": low,
                    "ci_high": high,
                    "of_image_tokens": table.use[0, expert],
                    "of_words": table.use[1, expert],
                    "images": table.images,
                    "trials": table.trials,
                }
            )
    return pd.DataFrame(rows)


def _by_place(columns: Arrays) -> tuple[Array, NDArray[np.bool_], int]:
    """Return the choices at each place ``(J, E)`` of some pictures, which places are words, and how many tokens."""
    entries, words = choices_of(columns)
    number = num_experts(columns)
    key = entries.token * number + entries.expert
    counts = sum_by_key(key, entries.weight, len(words) * number).reshape(len(words), number)
    return counts, words, int(columns[ModalityAnalysis.signature].sum())


def _use(counts: Array, words: NDArray[np.bool_]) -> Array:
    """Return each kind's shares of experts ``(D, 2, E)`` from counts ``(J, E)``, given the words ``(D, J)``."""
    tables = np.stack([~words, words], 1) @ counts
    return shares_by_code(tables.transpose(1, 2, 0)).transpose(2, 0, 1)


def _exchanged_words(words: NDArray[np.bool_], *, seed: int) -> NDArray[np.bool_]:
    """Return which places are the words in each permutation ``(D, J)``: the same of all layers and checkpoints."""
    keys = generator(seed, "places of a sequence").random((PERMUTATIONS, len(words)))
    return words[keys.argsort(1)]


def _divergence(use: Array) -> Array:
    return information(use.transpose(1, 2, 0)) / np.log(2)


def _image_shares(use: Array) -> Array:
    return divide(use[..., 0, :], use.sum(-2))


def _one_kind(use: Array) -> Array:
    """Return the share of the experts in use that serve one kind alone ``(D,)``, of shares ``(D, 2, E)``."""
    shares = _image_shares(use)
    # Where an expert has no choice, NaN is on neither side.
    alone = np.abs(shares - 0.5) >= ALONE - 0.5 - _ROUNDING
    return divide(alone.sum(-1), np.isfinite(shares).sum(-1))


def _influences(columns: Arrays, use: Array, totals: Array) -> Array:
    """Return the influences ``(n, E)`` of pictures on ``image_shares``, by the rule of quotients."""
    entries, words = choices_of(columns)
    number, images = num_experts(columns), len(columns[ModalityAnalysis.signature])
    slopes = []
    for kind in range(2):
        of_kind = words[entries.token] == bool(kind)
        choices = dataclasses.replace(entries, weight=entries.weight * of_kind).per_image(images, number)
        slopes.append(divide(choices - use[kind] * choices.sum(1, keepdims=True), totals[kind]))
    squared_sum = np.square(use.sum(0))
    return divide(use[1] * slopes[0] - use[0] * slopes[1], squared_sum, empty=0.0)
