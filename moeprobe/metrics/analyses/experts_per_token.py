"""How many experts process a token, where experts choose: none, one, two, or more; on average the capacity factor.

Where tokens choose, each has k experts minus the dropped choices (``dropped``). Patch tokens only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


def _share(number: str, words: str) -> Metric:
    return Metric(
        f"experts_per_token_{number}",
        about=f"share of the tokens of the view (or of both random views) processed by {words}; where experts choose",
        label=f"tokens with {words}",
        unit="share",
    )


SHARES = (
    _share("0", "no experts"),
    _share("1", "exactly one of the experts"),
    _share("2", "exactly two of the experts"),
    _share("3_or_more", "three or more experts"),
)
EXPERTS_PER_TOKEN = Metric(
    "experts_per_token",
    about="experts that process a token, on average; where experts choose, this is their capacity factor",
    unit="count",
)


class ExpertsPerToken(LayerAnalysis):
    """Shares of the tokens that none, one, two, or more experts process, and how many on average.

    Two experts choose among four tokens; these have none, one, one and two of them:

    >>> from moeprobe.metrics.analyses.experts_per_token import ExpertsPerToken
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(ExpertsPerToken(), pair(route([[[-1, -1], [0, -1], [-1, 1], [0, 1]]], experts_choose=True)))
    >>> value["experts_per_token"], [value[f"experts_per_token_{number}"] for number in range(3)]
    (1.0, [0.25, 0.5, 0.25])
    """

    measures = (EXPERTS_PER_TOKEN, *SHARES)
    signature = "experts_per_token"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether experts choose."""
        return layer.experts_choose

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return per image how many tokens have none, one, two and more experts ``(B, 4)``, and all their experts."""
        import torch

        histograms, experts = [], []
        for layer in pair.views:
            part = slice(layer.num_prefix_tokens, None)
            number = layer.processed_mask[:, part].sum(-1)
            valid = layer.valid[:, part]
            kinds = torch.nn.functional.one_hot(number.clamp(max=3), 4) * valid[..., None]
            histograms.append(kinds.sum(1))
            experts.append((number * valid).sum(1))
        columns = {
            "experts_per_token": torch.stack(histograms).sum(0),
            "experts_at_work": torch.stack(experts).sum(0),
        }
        return {pair.view.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the mean and the shares."""
        histogram = columns["experts_per_token"]
        tokens = histogram.sum(1)
        shares = [metric.share_of(kind, tokens) for metric, kind in zip(SHARES, histogram.T, strict=True)]
        return [EXPERTS_PER_TOKEN.mean_of(columns["experts_at_work"], tokens), *shares]
