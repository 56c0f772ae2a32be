"""How much noise changes a token's set of experts, and how much does noise move its margin?

The *critical σ* of a token is the least σ of a nested noise, one draw that is scaled, at which its set differs from the
clean input's. It is known to lie between two levels of the noise; beyond the last level it is not known.

The *sensitivity* of a margin is its standard deviation per σ of small noise. A margin says how stable a set is only
when divided by its sensitivity: a router with margins and sensitivities twice as large changes as many sets.

Axes: B images, J tokens, L levels of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.of_totals import OfTotals
from moeprobe.metrics.stats.statistic import Array, Ratio, divide

if TYPE_CHECKING:
    from torch import Tensor

MEDIAN = Metric(
    "critical_sigma_median",
    about="the σ of a nested noise at which half of the tokens have another set of experts, interpolated between the "
    "levels of the noise; empty where fewer than half change",
    label="median critical σ",
    better="more",
    unit="other",
)
MEAN = Metric(
    "critical_sigma_mean",
    about="restricted mean of the critical σ, the area below the survival curve up to the largest σ of the run",
    label="mean critical σ, restricted",
    better="more",
    unit="other",
)
SENSITIVITY = Metric(
    "margin_sensitivity",
    about="standard deviation of a token's margin per σ of small noise, on average over tokens; in logits where the "
    "choice is read off a softmax",
    label="sensitivity of the margin",
    unit="other",
)
RELATIVE = Metric(
    "margin_over_sensitivity",
    about="mean margin over mean sensitivity, a σ: how far sets are from changing whatever the unit of the margins is",
    label="margin ÷ sensitivity",
    better="more",
    unit="other",
)
_HISTOGRAM, _LEVELS, _MARGIN = "critical_histogram", "critical_levels", "critical_margin"
# The flag where fewer than half of the sets change.
UNREACHED = "unreached"


@dataclass(frozen=True)
class NoiseResponse:
    """When the sets of tokens change, and how noise moves their margins.

    Attributes:
        present: ``(B, J)`` which tokens there are.
        first: ``(B, J)`` the number of the first level with another set, from 0; L = none.
        levels: the L levels of the noise, rising.
        margin: ``(B, J)`` margins of the clean input, NaN where there is none.
        sensitivity: ``(B, J)`` standard deviations of the margins per σ, NaN as well.
    """

    present: Tensor
    first: Tensor
    levels: tuple[float, ...]
    margin: Tensor
    sensitivity: Tensor


class CriticalNoiseAnalysis(ModelAnalysis[NoiseResponse]):
    """Median and restricted mean of the critical σ, and the sensitivity of margins to noise.

    Three of ten tokens change at σ = 0.1, four at 0.2, and three not up to 0.4. Half have changed in the middle between
    0.1 (30 %) and 0.2 (70 %). With changes in the middle of two levels the mean is
    (3 · 0.05 + 4 · 0.15 + 3 · 0.4) / 10:

    >>> import torch
    >>> from moeprobe.metrics.analyses.critical_noise import CriticalNoiseAnalysis, NoiseResponse
    >>> from moeprobe.metrics.by_hand import numbers
    >>> first, ones = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 3, 3, 3]]), torch.ones(1, 10)
    >>> response = NoiseResponse(ones.bool(), first, (0.1, 0.2, 0.4), margin=0.6 * ones, sensitivity=2 * ones)
    >>> value = numbers(CriticalNoiseAnalysis(), response)
    >>> value["critical_sigma_median"], value["critical_sigma_mean"], value["margin_over_sensitivity"]
    (0.15, 0.195, 0.3)
    """

    measures = (MEDIAN, MEAN, SENSITIVITY, RELATIVE)
    signature = "critical_tokens"

    def sums(self, subject: NoiseResponse) -> dict[str, Tensor]:
        """Return per image the tokens by first level, their levels, and sums of margins and sensitivities."""
        import torch

        levels = torch.tensor((0.0, *subject.levels), dtype=torch.float64, device=subject.first.device)
        size = len(levels)
        is_first = torch.nn.functional.one_hot(subject.first, size) * subject.present[..., None]
        tokens = subject.present.sum(1)
        # A set changes between two levels; of what never changes no more is known than the last one.
        middles = torch.cat([(levels[1:] + levels[:-1]) / 2, levels[-1:]])
        has_both = subject.present & subject.margin.isfinite() & subject.sensitivity.isfinite()
        return {
            self.signature: tokens,
            _HISTOGRAM: is_first.sum(1),
            # Times the tokens, so that they add up over images.
            _LEVELS: tokens[:, None] * levels[1:],
            MEAN.name: (is_first.sum(1) * middles).sum(1),
            "critical_margins": has_both.sum(1),
            _MARGIN: subject.margin.masked_fill(~has_both, 0).sum(1),
            SENSITIVITY.name: subject.sensitivity.masked_fill(~has_both, 0).sum(1),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return median, mean, and the sensitivity alone and below the margin."""
        tokens, margins = columns[self.signature], columns["critical_margins"]
        counts = np.concatenate([columns[_HISTOGRAM], columns[_LEVELS]], axis=1).astype(np.float64)
        margin, sensitivity = (columns[name].astype(np.float64) for name in (_MARGIN, SENSITIVITY.name))
        return [
            MEDIAN.raw(OfTotals(counts, median, UNREACHED), tokens),
            MEAN.mean_of(columns[MEAN.name], tokens),
            SENSITIVITY.mean_of(sensitivity, margins),
            RELATIVE.raw(Ratio(margin, sensitivity), margins),
        ]


def median(sums: Array) -> Array:
    """Return the σ ``(R,)`` at which half of the tokens have changed, by linear interpolation; NaN where none is.

    Three of ten tokens change by σ = 0.1, four more by 0.2. Half is in the middle between 30 % and 70 %:

    >>> import numpy as np
    >>> from moeprobe.metrics.analyses.critical_noise import median
    >>> median(np.array([[3.0], [4.0], [3.0], [10 * 0.1], [10 * 0.2]])).round(3).tolist()
    [0.15]

    Args:
        sums: ``(2 L + 1, R)``: tokens by first level, the last those that never change; then tokens times levels.
    """
    size = (len(sums) + 1) // 2
    tokens = sums[:size].sum(0)
    changed = divide(np.cumsum(sums[: size - 1], axis=0), tokens)
    levels = divide(sums[size:], tokens)
    start = np.zeros((1, sums.shape[1]))
    changed, levels = np.concatenate([start, changed]), np.concatenate([start, levels])
    is_reached = changed >= 0.5
    after = np.where(is_reached.any(0), is_reached.argmax(0), 1)
    rows = np.arange(sums.shape[1])
    low, high = changed[after - 1, rows], changed[after, rows]
    weight = divide(0.5 - low, high - low)
    value: NDArray[np.float64] = levels[after - 1, rows] * (1 - weight) + levels[after, rows] * weight
    return np.where(is_reached.any(0) & (tokens > 0), value, np.nan)
