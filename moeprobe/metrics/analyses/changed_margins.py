"""Do only tokens change experts that were near a tie?

The selection margin of a token, as ``selection`` defines it, is read off the reference alone. Rounding moves scores by
little, so it changes sets with small margins. Another router, or damaged weights, change the others too.

Axes: B inputs, J tokens, n inputs of a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Array, MeanLoss, Totals, divide

if TYPE_CHECKING:
    from torch import Tensor

MARGIN_CHANGED = Metric(
    "margin_changed",
    about="selection margin in the reference of the tokens whose set of experts differs, on average",
    label="margin of tokens that differ",
    short="margin, differ",
    unit="other",
)
MARGIN_KEPT = Metric(
    "margin_kept",
    about="selection margin in the reference of the tokens whose set of experts is the same, on average",
    label="margin of tokens that do not",
    short="margin, same",
    unit="other",
)
MARGIN_RATIO = Metric(
    "margin_ratio",
    about="margin_changed divided by margin_kept: near 0 where only near ties change, 1 where margins do not matter",
    label="  margin, differ / same",
    short="margin ratio",
    unit="other",
)


@dataclass(frozen=True)
class ReferenceMargins:
    """Margins ``(B, J)`` in the reference, NaN where a token has none, and which sets ``(B, J)`` changed."""

    margin: Tensor
    changed: Tensor


@dataclass(frozen=True)
class RatioOfMeans:
    """(Σ a / Σ count of a) / (Σ b / Σ count of b), each ``(n,)``.

    Attributes:
        above: of the mean above the line.
        divisor: of the mean below it.
    """

    above: MeanLoss
    divisor: MeanLoss

    def evaluate(self, weights: Array) -> Array:
        """Return the ratio under each set of weights."""
        return divide(self.above.evaluate(weights), self.divisor.evaluate(weights))

    def totals(self) -> Totals:
        """Return the sums of both means."""
        return self.above.totals(), self.divisor.totals()

    def value(self, totals: Totals) -> float:
        """Return the ratio of the two means."""
        return float(divide(*(mean.value(part) for mean, part in zip(self._means, totals, strict=True))))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (da − value · db) / b."""
        mean_above, mean_below = self.totals() if totals is None else totals
        change = self.above.influence(mean_above) - self.value(
            (mean_above, mean_below)
        ) * self.divisor.influence(mean_below)
        return divide(change, self.divisor.value(mean_below))

    def contributions(self, totals: Totals | None = None) -> Array:
        """Return what each input adds to the mean above the line: few inputs may hold all changed tokens."""
        return self.above.contributions(None if totals is None else totals[0])

    @property
    def _means(self) -> tuple[MeanLoss, MeanLoss]:
        return self.above, self.divisor


class ChangedMargins(ModelAnalysis[ReferenceMargins]):
    """Selection margins of the tokens that change their set of experts, and of those that do not.

    One token of four changes, with a margin of 0.1; the others have 0.4 on average:

    >>> import torch
    >>> from moeprobe.metrics.analyses.changed_margins import ReferenceMargins, ChangedMargins
    >>> from moeprobe.metrics.by_hand import numbers
    >>> margin = torch.tensor([[0.1, 0.2, 0.4, 0.6]])
    >>> numbers(ChangedMargins(), ReferenceMargins(margin, torch.tensor([[True, False, False, False]])))
    {'margin_changed': 0.1, 'margin_kept': 0.4, 'margin_ratio': 0.25}
    """

    measures = (MARGIN_CHANGED, MARGIN_KEPT, MARGIN_RATIO)
    signature = "margin_changed_tokens"

    def sums(self, subject: ReferenceMargins) -> dict[str, Tensor]:
        """Return the summed margins of either kind of token per input ``(B,)``, and how many tokens they are of."""
        has_margin = ~subject.margin.isnan()
        columns = {}
        for name, which in (("changed", subject.changed), ("kept", ~subject.changed)):
            tokens = which & has_margin
            columns[f"margin_{name}"] = subject.margin.masked_fill(~tokens, 0).double().sum(1)
            columns[f"margin_{name}_tokens"] = tokens.sum(1)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return both means and their ratio.

        Margins are sums that a few inputs may carry, as losses are: without enough of them there is no interval.
        """
        of_changed, of_kept = (
            MeanLoss(
                columns[f"margin_{name}"].astype(np.float64),
                columns[f"margin_{name}_tokens"].astype(np.float64),
            )
            for name in ("changed", "kept")
        )
        trials = columns["margin_changed_tokens"]
        return [
            MARGIN_CHANGED.raw(of_changed, trials),
            MARGIN_KEPT.raw(of_kept, columns["margin_kept_tokens"]),
            MARGIN_RATIO.raw(RatioOfMeans(of_changed, of_kept), trials),
        ]
