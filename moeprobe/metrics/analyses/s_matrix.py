"""The correlation matrix S of paired gates over a whole data set: equations 3 and 4 and Figure 3 of the PRC paper.

S = E/N Σ r(x1, p1) r(x2, p2)ᵀ over the N pairs of corresponding patches, where view 1 (the row) is the view that
covers less of the source. A router that is confident, balanced and stable has S = I; one that says nothing has S_ij =
1/E.

* ``s``: each S_ij;
* ``s_diagonal``, ``s_offdiagonal``: the means of S_ii and of S_ij, i ≠ j. Gates that sum to one make all of S sum to
  E, so the two say the same thing: off-diagonal = (1 − diagonal) / (E − 1);
* ``prc_diagonal``, ``prc_offdiagonal``: the means of (1 − S_ii)² and of S_ij², i ≠ j: the two terms of the loss without
  their weights λ. In training, S is computed from one batch, so its terms are larger than over the data set: the mean
  of a square is at least the square of the mean. For the same reason few images make them larger than many.

Patch tokens only. Axes: B images, P pairs, E experts, n images of a whole run, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Array, Totals, divide
from moeprobe.runtime.caching import cache_last

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


S = Metric(
    "s",
    about="S_ij, association of the gates of expert i (column expert) in view 1 with the gates of expert j "
    "(expert_b) in view 2: E times their mean product over corresponding patches",
    unit="other",
)
S_DIAGONAL = Metric(
    "s_diagonal",
    about="mean of S_ii: 1 = confident, balanced and stable, 1 / E = no information",
    label="mean S_ii",
    noun="mean diagonal of S",
    unit="other",
)
S_OFFDIAGONAL = Metric(
    "s_offdiagonal", about="mean of S_ij, i ≠ j: 0 = ideal", label="mean S_ij, i ≠ j", unit="other"
)
PRC_DIAGONAL = Metric(
    "prc_diagonal",
    about="the first term of the PRC loss without its weight λ, mean (1 − S_ii)²; few images make it larger",
    label="PRC loss: mean (1 − S_ii)²",
    unit="other",
)
PRC_OFFDIAGONAL = Metric(
    "prc_offdiagonal",
    about="the second term of the PRC loss without its weight λ, mean S_ij², i ≠ j; few images make it larger",
    label="PRC loss: mean S_ij², i ≠ j",
    unit="other",
)


class SMatrixAnalysis(LayerAnalysis):
    """Correlation matrix S of the gates of corresponding patches, and the two terms of the PRC loss.

    Two patches whose gates are (1, 0) and (0, 1) on both sides, except for the second of view 2, (0.4, 0.6). S is twice
    the mean product: S_00 = 2 · 1 / 2, S_11 = 2 · 0.6 / 2, S_10 = 2 · 0.4 / 2, S_01 = 0:

    >>> from moeprobe.metrics.analyses.s_matrix import SMatrixAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> first = route([[0, 1]])
    >>> value = numbers(SMatrixAnalysis(), pair(first, route([[0, 1]], gates=[[[1, 0], [0.4, 0.6]]])))
    >>> [value[name] for name in ("s_diagonal", "s_offdiagonal", "prc_diagonal", "prc_offdiagonal", "s 1 0")]
    [0.8, 0.2, 0.08, 0.08, 0.4]
    """

    measures = (
        S_DIAGONAL,
        S_OFFDIAGONAL,
        PRC_DIAGONAL,
        PRC_OFFDIAGONAL,
        S,
    )
    signature = "gate_products"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token's gates are a distribution over at least two experts."""
        return layer.gates_sum_to_one and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return Σ r(x1, p1) r(x2, p2)ᵀ ``(B, E·E)``, row by row, and the number of pairs per image."""
        import torch

        reference, reference_valid = _gates_of_patches(pair.reference, pair.reference_patch)
        view, view_valid = _gates_of_patches(pair.view, pair.view_patch)
        valid = reference_valid & view_valid
        # Masked, not multiplied: padding may hold NaN.
        sides = [gates.masked_fill(~valid[..., None], 0) for gates in (reference, view)]
        if pair.view_first is not None:
            exchange = pair.view_first[:, None, None]
            sides = [torch.where(exchange, first, second) for first, second in (sides[::-1], sides)]
        products = sides[0].transpose(1, 2) @ sides[1]
        return {pair.view.modality.token: {"gate_products": products.flatten(1), "pairs": valid.sum(1)}}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means and loss terms, and every entry."""
        pairs = columns["pairs"]
        matrix = _Matrix(columns["gate_products"].astype(np.float64), pairs.astype(np.float64))
        estimators = [metric.raw(_Reading(matrix, *reading), pairs) for metric, reading in _READINGS.items()]
        for i, j in np.ndindex(matrix.num_experts, matrix.num_experts):
            estimators.append(S.raw(_Entry(matrix, i, j), pairs, expert=i, expert_b=j))
        return estimators


def _gates_of_patches(layer: LayerRouting, patch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gates ``(B, P, E)`` of the patches ``(B, P)``, and which of them are there and no padding."""
    present = patch >= 0
    token = patch.clamp_min(0) + layer.num_prefix_tokens
    gates = layer.gates.gather(1, token[..., None].expand(-1, -1, layer.num_experts))
    return gates, present & layer.valid.gather(1, token)


class _Matrix:
    """S under image weights, from summed products ``(n, E·E)`` and pairs ``(n,)``."""

    def __init__(self, products: Array, pairs: NDArray[np.float64]) -> None:
        self.num_experts = round(products.shape[1] ** 0.5)
        self.num_images = len(pairs)
        self._products = products
        self._pairs = pairs

    @cache_last
    def under(self, weights: Array) -> Array:
        """Return S ``(E, E, R)`` under weights ``(n, R)``; NaN where there is no pair."""
        return self._over(self._products.T @ weights, self._pairs @ weights)

    @cached_property
    def totals(self) -> Totals:
        """The summed products ``(E·E,)`` and pairs."""
        return self._products.sum(0), self._pairs.sum()

    def of(self, totals: Totals) -> Array:
        """Return S ``(E, E)`` of summed products and pairs."""
        products, pairs = totals
        return self._over(products[:, None], np.asarray(pairs)[None])[..., 0]

    @cache_last
    def influence(self, totals: Totals) -> Array:
        """Return each image's influence on each entry ``(n, E, E)``."""
        shape = (-1, self.num_experts, self.num_experts)
        influence = self.num_experts * self._products.reshape(shape)
        influence = influence - self.of(totals) * self._pairs[:, None, None]
        return divide(influence, totals[1])

    def _over(self, products: Array, pairs: Array) -> Array:
        """Return S ``(E, E, R)`` of summed products ``(E·E, R)`` and pairs ``(R,)``."""
        share = np.where(pairs > 0, self.num_experts / np.where(pairs > 0, pairs, 1.0), np.nan)
        return (products * share).reshape(self.num_experts, self.num_experts, -1)


@dataclass(frozen=True)
class _Entry:
    """S_ij."""

    matrix: _Matrix
    row: int
    column: int

    def evaluate(self, weights: Array) -> Array:
        """Return the entry under each set of weights."""
        return self.matrix.under(weights)[self.row, self.column]

    def totals(self) -> Totals:
        """Return the totals of the matrix."""
        return self.matrix.totals

    def value(self, totals: Totals) -> float:
        """Return the entry."""
        return float(self.matrix.of(totals)[self.row, self.column])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return each image's influence on the entry."""
        totals = self.totals() if totals is None else totals
        return self.matrix.influence(totals)[:, self.row, self.column]


@dataclass(frozen=True)
class _Reading:
    """A number read off S."""

    matrix: _Matrix
    read: Callable[[Array], Array]
    slope: Callable[[Array], Array]

    def evaluate(self, weights: Array) -> Array:
        """Return the number under each set of weights."""
        return self.read(self.matrix.under(weights))

    def totals(self) -> Totals:
        """Return the totals of the matrix."""
        return self.matrix.totals

    def value(self, totals: Totals) -> float:
        """Return the number."""
        return float(self.read(self.matrix.of(totals)[..., None])[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return each image's influence on the number: by its derivative ``(E, E)`` with respect to S."""
        totals = self.totals() if totals is None else totals
        return np.einsum("nij,ij->n", self.matrix.influence(totals), self.slope(self.matrix.of(totals)))


def _diagonal(matrix: Array) -> Array:
    """Return S_ii ``(E, R)``."""
    return np.einsum("iir->ir", matrix)


def _offdiagonal(matrix: Array) -> Array:
    """Return S_ij, i ≠ j ``(E (E − 1), R)``."""
    return matrix[~np.eye(len(matrix), dtype=bool)]


def _on_diagonal(values: Array) -> Array:
    """Return a slope ``(E, E)`` that is the mean's of ``values`` ``(E,)`` on the diagonal, and 0 elsewhere."""
    return np.diag(values) / len(values)


def _off_diagonal(values: Array) -> Array:
    """Return a slope ``(E, E)`` that is the mean's of ``values`` ``(E, E)`` off the diagonal, and 0 on it."""
    num_experts = len(values)
    return np.where(np.eye(num_experts, dtype=bool), 0.0, values) / (num_experts * (num_experts - 1))


# Metric -> the number read off S ``(E, E, R)``, and its derivative at S ``(E, E)``.
_READINGS: dict[Metric, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    S_DIAGONAL: (lambda s: _diagonal(s).mean(0), lambda s: _on_diagonal(np.ones(len(s)))),
    S_OFFDIAGONAL: (lambda s: _offdiagonal(s).mean(0), lambda s: _off_diagonal(np.ones_like(s))),
    PRC_DIAGONAL: (
        lambda s: ((1 - _diagonal(s)) ** 2).mean(0),
        lambda s: _on_diagonal(-2 * (1 - np.diag(s))),
    ),
    PRC_OFFDIAGONAL: (lambda s: (_offdiagonal(s) ** 2).mean(0), lambda s: _off_diagonal(2 * s)),
}
