"""Do margins predict which sets change?

To first order, noise of standard deviation σ moves a margin m by σ g z: z a draw of a normal distribution, g the
sensitivity of the margin. So the set changes with probability Φ(−m / (σ g)). Since g is estimated from a few draws, the
tails are Student's. The prediction is compared with flips under noise that the estimate of g has not seen.

Ranks by m / g need no σ, so that they can be compared with flips under any perturbation.

Axes: B images, J tokens, C bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.calibration import Binned, CalibrationError, CalibrationFloor
from moeprobe.metrics.stats.of_totals import ShareOfTotals
from moeprobe.metrics.stats.ranking import RankedFlips, encode
from moeprobe.metrics.stats.statistic import Array, divide

if TYPE_CHECKING:
    from torch import Tensor

OBSERVED = Metric(
    "flip_rate",
    about="share of tokens with another set of experts than for the clean input, of tokens that have a margin",
    label="observed flips",
    better="less",
)
PREDICTED = Metric(
    "flip_rate_predicted",
    about="the same share as margins predict it, their mean predicted probability",
    label="predicted flips",
)
ECE = Metric(
    "flip_ece",
    about="expected calibration error of the predicted probabilities, without what noise adds: the distance of "
    "predicted and observed shares in ten bins of the prediction, its square less its variance over images, on average "
    "over tokens; 0 = exact",
    label="calibration error",
    better="less",
)
FLOOR = Metric(
    "flip_ece_floor",
    about="mean distance of predicted and observed shares that noise alone causes, where flips are redrawn from the "
    "predictions and tokens of an image vary together as observed",
    label="floor of the calibration error",
    short="floor",
    below="flip_ece",
)
BRIER = Metric(
    "flip_brier",
    about="mean squared distance of the predicted probability from what happens, 1 = flip, 0 = none",
    label="Brier score",
    better="less",
)
BRIER_RATE = Metric(
    "flip_brier_rate",
    about="the Brier score of a prediction that gives every token the observed share of flips: the score to beat",
    label="Brier score of the rate",
)
AUROC = Metric(
    "flip_auroc",
    about="of a token that flips and one that does not, the probability that the first has the smaller margin "
    "relative to its sensitivity; 0.5 = chance, 1 = perfect",
    label="AUROC of margin ÷ sensitivity",
    better="more",
)
AUROC_MARGIN = Metric(
    "flip_auroc_margin",
    about="the same by the margin alone",
    label="AUROC of the margin",
    better="more",
)
BINS = 10
# Predictions are one-sided tails, and never above one half.
HIGHEST = 0.5
_COUNT, _SUM, _HITS = "flip_bin_tokens", "flip_bin_predicted", "flip_bin_flips"
_RANKED = {AUROC: "flip_codes", AUROC_MARGIN: "flip_codes_margin"}


@dataclass(frozen=True)
class PredictedFlips:
    """Margins of tokens, and whether they flip.

    Attributes:
        present: ``(B, J)`` which tokens there are.
        flips: ``(B, J)`` bool, whether a token has another set.
        margin: ``(B, J)`` NaN where there is none.
        critical: ``(B, J)`` margin over sensitivity, NaN as well.
        probability: ``(B, J)`` predicted; None where the perturbation has no σ.
    """

    present: Tensor
    flips: Tensor
    margin: Tensor
    critical: Tensor
    probability: Tensor | None


class FlipPredictionAnalysis(ModelAnalysis[PredictedFlips]):
    """Flips as margins predict them, and as they are: calibration, Brier score and AUROC.

    Two of four tokens flip. The first has the smallest margin, so that it is below both that do not flip; the other is
    below one of them: 3 of 4 pairs. Flips are predicted with 0.5, 0.3, 0.3, 0.1, and the squared distances from what
    happens are 0.25, 0.09, 0.49 and 0.01:

    >>> import torch
    >>> from moeprobe.metrics.analyses.flip_prediction import FlipPredictionAnalysis, PredictedFlips
    >>> from moeprobe.metrics.by_hand import numbers
    >>> margin, predicted = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.5, 0.3, 0.3, 0.1]])
    >>> flips = torch.tensor([[True, False, True, False]])
    >>> value = numbers(FlipPredictionAnalysis(), PredictedFlips(flips | True, flips, margin, margin, predicted))
    >>> value["flip_rate"], value["flip_rate_predicted"], value["flip_brier"], value["flip_auroc"]
    (0.5, 0.3, 0.21, 0.75)
    """

    measures = (OBSERVED, PREDICTED, ECE, FLOOR, BRIER, BRIER_RATE, AUROC, AUROC_MARGIN)
    signature = "flip_tokens"
    trial_lists = tuple(_RANKED.values())

    def sums(self, subject: PredictedFlips) -> dict[str, Tensor]:
        """Return per image counts of tokens and flips, also by bins of the prediction, and the rank of each token."""
        # A margin of 0 that nothing moves is neither near nor far.
        is_counted = subject.present & ~subject.critical.isnan()
        flips = subject.flips & is_counted
        columns = {self.signature: is_counted.sum(1), OBSERVED.name: flips.sum(1)}
        for metric, values in ((AUROC, subject.critical), (AUROC_MARGIN, subject.margin)):
            columns[_RANKED[metric]] = encode(values, flips, is_counted)
        if subject.probability is not None:
            probability = subject.probability.masked_fill(~is_counted, 0)
            bins = (probability * (BINS / HIGHEST)).long().clamp(0, BINS - 1)
            columns |= {
                PREDICTED.name: probability.sum(1),
                BRIER.name: (probability - flips.double()).square().masked_fill(~is_counted, 0).sum(1),
                _COUNT: _counts(bins, is_counted, BINS),
                _SUM: probability.new_zeros(len(bins), BINS).scatter_add_(1, bins, probability),
                _HITS: _counts(bins, flips, BINS),
            }
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the shares, and the scores of the prediction."""
        trials = columns[self.signature]
        flips = columns[OBSERVED.name]
        estimators = [OBSERVED.share_of(flips, trials)]
        if PREDICTED.name in columns:
            estimators.append(PREDICTED.share_of(columns[PREDICTED.name], trials))
        if _COUNT in columns:
            binned = Binned(*(columns[name].astype(np.float64) for name in (_COUNT, _SUM, _HITS)))
            rate = np.stack([flips, trials], axis=1)
            estimators += [
                ECE.raw(CalibrationError(binned), trials),
                FLOOR.raw(CalibrationFloor(binned), trials),
                BRIER.mean_of(columns[BRIER.name], trials),
                BRIER_RATE.raw(ShareOfTotals(rate.astype(np.float64), _spread), trials),
            ]
        return estimators + [
            metric.raw(RankedFlips(columns[name]), trials)
            for metric, name in _RANKED.items()
            if name in columns
        ]


def columns_by_bin(columns: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the sums of the tokens in each bin of the prediction, by what tables call these."""
    names = {FlipPredictionAnalysis.signature: _COUNT, PREDICTED.name: _SUM, OBSERVED.name: _HITS}
    return {
        bin_name(number): {name: columns[binned][:, number] for name, binned in names.items()}
        for number in range(BINS)
    }


def bin_name(number: int) -> str:
    """Return what tables call the tokens in a bin of the prediction, numbered from 0."""
    width = HIGHEST / BINS
    return f"predicted {number * width:.2f} to {(number + 1) * width:.2f}"


def _spread(sums: Array) -> Array:
    """Return p (1 − p) of the share p of flips ``(R,)``."""
    rate = divide(sums[0], sums[1])
    return rate * (1 - rate)


def _counts(bins: Tensor, is_counted: Tensor, size: int) -> Tensor:
    """Return how many counted tokens ``(B, J)`` are in each bin ``(B, size)``."""
    import torch

    zeros = torch.zeros(len(bins), size, dtype=torch.int64, device=bins.device)
    return zeros.scatter_add_(1, bins, is_counted.long())
