"""Prices of forced flips in texts: how far the log-probabilities of following tokens fall.

The counterpart of ``flips`` for language models, which answer at every token: the answers are the tokens that really
follow. Tokens are sampled and weighted as there.

Axes: B texts, T tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from moeprobe.metrics.analyses.flips import BEYOND, FORCED, LABELS
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ForcedTextFlips:
    """Flips to one kind of set, of the tokens of a batch at one layer; where the weight is 0, none was forced.

    Attributes:
        weight: ``(B, T)`` tokens of the text that the flip stands for.
        next_fall: ``(B, T)`` fall of the log-probability of the next token, in nats.
        following_fall: ``(B, T)`` fall of the sum of the log-probabilities of all following tokens, the next one too.
    """

    weight: Tensor
    next_fall: Tensor
    following_fall: Tensor

    def among(self, tokens: Tensor) -> ForcedTextFlips:
        """Return the flips of some tokens ``(B, T)`` alone."""
        return replace(self, weight=self.weight * tokens)


# The numbers, each with its description and its label.
_MEASURED: dict[str, tuple[str, str]] = {
    "next": (
        "fall of the log-probability of the next token of the text by a flip of one token in this layer, on average",
        "fall of the next token by a flip",
    ),
    "next_size": (
        "how far a flip moves the log-probability of the next token of the text, up or down, on average",
        "size at the next token",
    ),
    "next_beyond": (
        f"share of flips that move the log-probability of the next token of the text by more than {BEYOND:g} nats, up "
        "or down",
        f"flips beyond {BEYOND:g} nats at the next token",
    ),
    "following": (
        "fall of the sum of the log-probabilities of all following tokens, the next one too, by a flip, on average",
        "fall of all following tokens by a flip",
    ),
    "following_size": (
        "how far a flip moves that sum, up or down, on average",
        "size at all following tokens",
    ),
}


# Those of the above that count flips.
_SHARES = ("next_beyond",)


def text_flip_metric(measured: str, forced: str) -> Metric:
    """Return the metric that is ``measured`` (next, next_size, …) of flips to a kind of set."""
    meaning, label = _MEASURED[measured]
    return Metric(
        f"flip_{measured}_{forced}",
        about=f"{meaning}: {FORCED[forced]}",
        label=f"{label}{LABELS[forced]}",
        unit="share" if measured in _SHARES else "nats",
        better="less",
    )


class TextFlipsAnalysis(ModelAnalysis[Mapping[str, ForcedTextFlips]]):
    """What forced flips of single tokens do to the tokens that follow, by the kind of set.

    Two flips in a text, the first of which stands for three tokens: the next token falls by (3 · 0.2 − 1 · 0.2) / 4,
    and moves by (3 · 0.2 + 1 · 0.2) / 4:

    >>> import torch
    >>> from moeprobe.metrics.analyses.text_flips import ForcedTextFlips, TextFlipsAnalysis
    >>> from moeprobe.metrics.by_hand import numbers
    >>> fall = torch.tensor([[0.2, -0.2]])
    >>> value = numbers(TextFlipsAnalysis(), {"runner_up": ForcedTextFlips(torch.tensor([[3.0, 1.0]]), fall, 2 * fall)})
    >>> value["flip_next_runner_up"], value["flip_next_size_runner_up"], value["flip_following_runner_up"]
    (0.1, 0.2, 0.2)
    """

    measures = tuple(
        MetricFamily(
            f"flip_{measured}_{{set}}",
            rf"flip_{measured}_({'|'.join(FORCED)})",
            partial(text_flip_metric, measured),
            example=("runner_up",),
        )
        for measured in _MEASURED
    )
    signature = "text_flips_runner_up"

    def sums(self, subject: Mapping[str, ForcedTextFlips]) -> dict[str, Tensor]:
        """Return per text, for each kind of set, flips, their weights, and weighted sums of what they do."""
        columns: dict[str, Tensor] = {}
        for forced, flips in subject.items():
            weight = flips.weight.double()
            columns[f"text_flips_{forced}"] = (weight > 0).sum(1)
            columns[f"text_flips_weight_{forced}"] = weight.sum(1)
            values = {
                "next": flips.next_fall,
                "next_size": flips.next_fall.abs(),
                "next_beyond": flips.next_fall.abs() > BEYOND,
                "following": flips.following_fall,
                "following_size": flips.following_fall.abs(),
            }
            columns |= {
                text_flip_metric(name, forced).name: (weight * value).sum(1) for name, value in values.items()
            }
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over flips."""
        estimators = []
        for forced, measured in itertools.product(FORCED, _MEASURED):
            metric = text_flip_metric(measured, forced)
            if metric.name in columns:
                mean = metric.share_of if measured in _SHARES else metric.mean_of
                weight = columns[f"text_flips_weight_{forced}"]
                estimators.append(mean(columns[metric.name], columns[f"text_flips_{forced}"], weight=weight))
        return estimators
