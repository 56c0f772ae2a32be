"""Do prices of single flips predict what all flips of a perturbation cost together?

The damage of a perturbation is the fall of the log-probability of the class that is predicted for the clean input. With
f(pixels, sets) that fall, its part by switching experts is ½ [f(p, c) − f(c, c)] + ½ [f(p, p) − f(c, p)] with the roles
as in ``attribution``: sets exchanged on clean pixels, and on perturbed ones, on average.

The prediction is Σ price × flips. The flips belong to the perturbation. A price is the mean fall by one forced flip to
the set under *another* perturbation, of tokens in the same layer and decile of the margin. It comes from the *other
half* of the images: an image never prices its own flips. A decile without a priced flip has the price of its layer's
patches.

Everything is read off sums over images, so resamples draw images for prices, flips and damage together.

Axes: B images, n images of a run, P perturbations, L layers, C cells of the price list, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.analyses.flips import DECILES
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.of_totals import LossOfTotals
from moeprobe.metrics.stats.statistic import Array, Ratio, Totals, divide, is_beyond

if TYPE_CHECKING:
    from torch import Tensor

COUNT = Metric(
    "flip_count",
    about="tokens of an input that have another set of experts under the perturbation, of all layers",
    label="flips per input",
    unit="count",
)
PREDICTED = Metric(
    "flip_cost_predicted",
    about="what the flips of a perturbation cost by a price list: the sum of price × flips per input. Prices are "
    "from single flips to the set under another perturbation, on the other half of the inputs, by layer and decile of "
    "the margin",
    label="predicted cost of flips",
    unit="nats",
)
COST = Metric(
    "flip_cost",
    about="the part of switching experts in the fall of the log-probability of the class predicted for the clean "
    "input: sets exchanged on clean and on perturbed pixels, on average",
    label="cost of flips",
    unit="nats",
    better="less",
)
COST_CLEAN = Metric(
    "flip_cost_clean",
    about="the fall of that log-probability by the perturbed sets on clean pixels, where single flips are priced too: "
    "it differs from the predicted cost where prices do not add up",
    label="cost on clean pixels",
    unit="nats",
    better="less",
)
DAMAGE = Metric(
    "flip_damage",
    about="the whole fall of that log-probability by the perturbation, through pixels and sets",
    label="damage",
    unit="nats",
    better="less",
)
SHARE = Metric(
    "flip_cost_share",
    about="the predicted cost of flips as a share of their cost; no value where the interval of the cost holds 0",
    label="predicted ÷ cost",
    unit="other",
)
_LINES = {"": COST.label, "_clean": COST_CLEAN.label}
SLOPE, SLOPE_CLEAN = (
    Metric(
        f"flip_cost_slope{suffix}",
        about=f"slope of the line through 0 that fits the {label} by the predicted cost best, over held-out "
        "perturbations; 1 = prices add up",
        label=f"slope, {label}",
        unit="other",
    )
    for suffix, label in _LINES.items()
)
R2, R2_CLEAN = (
    Metric(
        f"flip_cost_r2{suffix}",
        about=f"share of the sum of squares of the {label}, over perturbations, that the line through 0 explains. "
        "Uncentered: equal costs are explained too, and so are falling ones by a slope below 0. No value where every "
        "interval of the cost holds 0",
        label=f"uncentered R², {label}",
        unit="other",
    )
    for suffix, label in _LINES.items()
)
# The parts of the price list of a layer: deciles of the margin, patches without one, and prefix tokens.
PRICED_KINDS = DECILES + 2
# Halves of the images: prices of one are for the flips of the other.
FOLDS = 2
# What is kept of the change that a perturbation makes, in this order.
_CHANGES = (COST, COST_CLEAN, DAMAGE)
# The flag of what is not known, since flips cost nothing or have no price.
NO_COST = "no_cost"
# Changes of a log-probability that float32 may make of nothing.
_ROUNDING = 1e-5
_FLIPS, _WEIGHT, _PRICE, _CHANGE = (f"flip_costs_{part}" for part in ("flips", "weight", "price", "change"))


@dataclass(frozen=True)
class PredictedCosts:
    """Flips of some perturbations, the price list of the run's own one, and what the perturbations do.

    Attributes:
        fold: ``(B,)`` the half of an image, 0 or 1.
        flips: ``(B, P, C)`` flips of each perturbation by cell of the price list.
        weight: ``(B, C)`` flips that the priced ones stand for.
        price: ``(B, C)`` sum of their falls, weighted.
        corners: ``(B, P, 4)`` the log-probability for (pixels, sets): clean clean, perturbed clean, clean perturbed,
            perturbed perturbed.
    """

    fold: Tensor
    flips: Tensor
    weight: Tensor
    price: Tensor
    corners: Tensor

    def of(self, perturbation: int) -> PredictedCosts:
        """Return one perturbation alone."""
        row = slice(perturbation, perturbation + 1)
        return replace(self, flips=self.flips[:, row], corners=self.corners[:, row])


class FlipCostsAnalysis(ModelAnalysis[PredictedCosts]):
    """What all flips of a perturbation cost, and what prices of single flips say that they do.

    Two images, one in each half, with two flips and one in the same decile. A flip of the first image costs 0.1, one of
    the second 0.3, and the other half has the price: 2 · 0.3 and 1 · 0.1, 0.35 on average. The log-probability falls by
    0.5 and 0.1 by the sets alone, and by as much where the pixels are perturbed too, so that flips cost 0.3:

    >>> import torch
    >>> from moeprobe.metrics.analyses.flip_costs import PRICED_KINDS, FlipCostsAnalysis, PredictedCosts
    >>> from moeprobe.metrics.by_hand import numbers
    >>> flips, price, ones = torch.zeros(2, 1, PRICED_KINDS), torch.zeros(2, PRICED_KINDS), torch.ones(2, PRICED_KINDS)
    >>> flips[:, 0, 0], price[:, 0] = torch.tensor([2.0, 1.0]), torch.tensor([0.1, 0.3])
    >>> falls = torch.tensor([[[0, -0.2, -0.5, -0.7]], [[0, -0.2, -0.1, -0.3]]])
    >>> value = numbers(FlipCostsAnalysis(), PredictedCosts(torch.tensor([0, 1]), flips, ones, price, falls))
    >>> value["flip_count"], value["flip_cost_predicted"], value["flip_cost"], value["flip_damage"]
    (1.5, 0.35, 0.3, 0.5)
    """

    measures = (COUNT, PREDICTED, COST, COST_CLEAN, DAMAGE, SHARE, SLOPE, R2, SLOPE_CLEAN, R2_CLEAN)
    signature = "flip_costs"

    def sums(self, subject: PredictedCosts) -> dict[str, Tensor]:
        """Return per image flips, prices (each in the half of the image) and changes of every perturbation."""
        import torch

        in_fold = torch.nn.functional.one_hot(subject.fold, FOLDS)

        def by_fold(values: Tensor) -> Tensor:
            shape = (len(values), *([1] * (values.ndim - 2)), FOLDS, 1)
            return (in_fold.to(values).reshape(shape) * values[..., None, :]).flatten(1)

        clean, pixels, sets, perturbed = subject.corners.unbind(-1)
        changes = torch.stack([(clean - sets + pixels - perturbed) / 2, clean - sets, clean - perturbed], -1)
        return {
            self.signature: torch.ones_like(subject.fold),
            _FLIPS: by_fold(subject.flips),
            _WEIGHT: by_fold(subject.weight),
            _PRICE: by_fold(subject.price),
            _CHANGE: changes.flatten(1),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the costs of one perturbation, or how the predicted ones of several fit."""
        inputs = columns[self.signature]
        counts, changes = inputs.astype(np.float64), columns[_CHANGE].astype(np.float64)
        flips = columns[_FLIPS].astype(np.float64)
        sums = _Sums(
            perturbations=changes.shape[1] // len(_CHANGES), cells=columns[_WEIGHT].shape[1] // FOLDS
        )
        parts = [counts[:, None], columns[_WEIGHT], columns[_PRICE], flips, changes, changes**2]
        joined = np.concatenate([part.astype(np.float64) for part in parts], axis=1)
        # Prices, and what a perturbation changes.
        is_loss = np.repeat([False, False, True, False, True, False], [part.shape[1] for part in parts])

        def where_known(read: Callable[[Array], Array], is_known: Callable[[Array], bool]) -> _Known:
            return _Known(joined, read, is_known=is_known, is_loss=is_loss)

        if sums.perturbations > 1:
            return [
                metric.raw(statistic, inputs)
                for change, (slope, r2) in enumerate([(SLOPE, R2), (SLOPE_CLEAN, R2_CLEAN)])
                for metric, statistic in (
                    (slope, where_known(partial(_slope, sums, change), sums.is_predicted)),
                    (r2, where_known(partial(_r2, sums, change), partial(sums.differs_from_zero, change))),
                )
            ]
        predicted = LossOfTotals(
            joined, lambda totals: sums.predicted_cost(totals)[0], NO_COST, is_loss=is_loss
        )
        estimators = [COUNT.raw(Ratio(flips.sum(1), counts), inputs), PREDICTED.raw(predicted, inputs)]
        estimators += [metric.mean_of(changes[:, number], inputs) for number, metric in enumerate(_CHANGES)]
        share = where_known(partial(_share, sums), partial(sums.differs_from_zero, 0))
        return [*estimators, SHARE.raw(share, inputs)]


@dataclass(frozen=True)
class _Known(LossOfTotals):
    """A number that exists only where the totals of all images say so; resamples do not decide it.

    Attributes:
        is_known: whether totals ``(S,)`` allow the number.
    """

    undefined: str = NO_COST
    is_known: Callable[[Array], bool] = field(kw_only=True)

    def evaluate(self, weights: Array) -> Array:
        """Return the number under each set of weights."""
        return (
            super().evaluate(weights) if self.is_known(self.totals()) else np.full(weights.shape[1], np.nan)
        )

    def value(self, totals: Totals) -> float:
        """Return the number."""
        return super().value(totals) if self.is_known(totals) else np.nan


@dataclass(frozen=True)
class _Sums:
    """Where the parts of summed columns ``(S, R)`` are, and what they come to."""

    perturbations: int
    cells: int

    def split(self, sums: Array) -> list[Array]:
        """Return images, weights, prices ``(2, C, R)``, flips ``(P, 2, C, R)``, changes, squares ``(P, 3, R)``."""
        resamples = sums.shape[1:]
        shapes = [
            (1,),
            *[(FOLDS, self.cells)] * 2,
            (self.perturbations, FOLDS, self.cells),
            *[(self.perturbations, len(_CHANGES))] * 2,
        ]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        return [
            part.reshape(*shape, *resamples) for part, shape in zip(np.split(sums, ends), shapes, strict=True)
        ]

    def predicted_cost(self, sums: Array) -> Array:
        """Return the predicted cost per image ``(P, R)``; NaN where a flip has no price."""
        images, weight, price, flips, *_ = self.split(sums)
        by_layer = (FOLDS, -1, PRICED_KINDS, *sums.shape[1:])
        weights, prices = weight.reshape(by_layer), price.reshape(by_layer)
        pooled = divide(prices[:, :, :-1].sum(2, keepdims=True), weights[:, :, :-1].sum(2, keepdims=True))
        priced = divide(prices, weights)
        priced[:, :, :-1] = np.where(weights[:, :, :-1] > 0, priced[:, :, :-1], pooled)
        # The price of the other half.
        of_others = priced.reshape(weight.shape)[::-1]
        cost = np.where(flips == 0, 0, flips * of_others)
        return cost.sum((1, 2)) / images

    def mean_changes(self, sums: Array, change: int) -> Array:
        """Return a change per image ``(P, R)``."""
        images, *_, changes, _ = self.split(sums)
        return changes[:, change] / images

    def differs_from_zero(self, change: int, totals: Array) -> bool:
        """Return whether the interval of a change lies beyond rounding, under any perturbation."""
        [images], *_, changes, squares = self.split(np.asarray(totals, float))
        mean = changes[:, change] / images
        spread = np.maximum(squares[:, change] / images - mean**2, 0) / images
        return any(
            is_beyond(abs(of_one), of_squares, int(images), floor=_ROUNDING)
            for of_one, of_squares in zip(mean, spread, strict=True)
        )

    def is_predicted(self, totals: Array) -> bool:
        """Return whether any prediction is more than rounding."""
        predicted = self.predicted_cost(np.asarray(totals, float)[:, None])
        return bool((np.abs(predicted) > _ROUNDING).any())


def _share(sums: _Sums, totals: Array) -> Array:
    """Return the predicted share of the cost ``(R,)``."""
    return divide(sums.predicted_cost(totals), sums.mean_changes(totals, 0))[0]


def _slope(sums: _Sums, change: int, totals: Array) -> Array:
    """Return the slope of the line through 0 ``(R,)``."""
    predicted, cost = sums.predicted_cost(totals), sums.mean_changes(totals, change)
    return divide((predicted * cost).sum(0), (predicted**2).sum(0))


def _r2(sums: _Sums, change: int, totals: Array) -> Array:
    """Return the share of the squared costs that the line through 0 explains ``(R,)``: the squared cosine."""
    predicted, cost = sums.predicted_cost(totals), sums.mean_changes(totals, change)
    return divide((predicted * cost).sum(0) ** 2, (predicted**2).sum(0) * (cost**2).sum(0))
