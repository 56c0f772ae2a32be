"""How probable a language model finds the texts that it reads, and how far that moves.

Axes: B texts, T tokens, n texts of a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

LOG_PROBABILITY = Metric(
    "log_probability",
    about="mean natural logarithm of the probability of a text's tokens, each given those before it",
    label="log-probability of a token",
    better="more",
    unit="nats",
    margin=False,
)
GAP = Metric(
    "log_probability_gap",
    about="mean absolute difference between a token's log-probability and the original model's",
    label="difference of log-probability",
    better="less",
    unit="nats",
    margin=False,
)
K3 = Metric(
    "k3_divergence",
    about="mean of exp(d) − 1 − d over the tokens, d the difference of their log-probability: k3 on these "
    "tokens, which estimates the Kullback-Leibler divergence (Schulman) only where the original model generated them",
    label="k3 on these tokens",
    better="less",
    unit="nats",
    margin=False,
)


@dataclass(frozen=True)
class LogProbabilities:
    """Log-probabilities ``(B, T)`` in the reference (None = unknown) and in the view; NaN where a token has none."""

    reference: Tensor | None
    view: Tensor


class LogProbability(ModelAnalysis[LogProbabilities]):
    """Log-probability of the tokens of texts, and its distance from the original model's.

    Two tokens, whose log-probability moves by d = 1 and −1. The mean of exp(d) − 1 − d is (0.718 + 0.368) / 2:

    >>> import torch
    >>> from moeprobe.metrics.analyses.log_probability import LogProbabilities, LogProbability
    >>> from moeprobe.metrics.by_hand import numbers
    >>> numbers(LogProbability(), LogProbabilities(torch.tensor([[-2.0, -1.0]]), torch.tensor([[-1.0, -2.0]])))
    {'log_probability': -1.5, 'log_probability_gap': 1.0, 'k3_divergence': 0.543}
    """

    measures = (LOG_PROBABILITY, GAP, K3)
    signature = "scored_tokens"

    def sums(self, subject: LogProbabilities) -> dict[str, Tensor]:
        """Return sums over the tokens of each text."""
        has_score = ~subject.view.isnan()
        columns = {
            "scored_tokens": has_score.sum(1),
            LOG_PROBABILITY.name: subject.view.nan_to_num().double().sum(1),
        }
        if subject.reference is not None:
            # What the reference finds likely, as the view finds it: tokens are the reference's.
            log_ratio = (subject.view - subject.reference).where(has_score, 0.0).double()
            columns[GAP.name] = log_ratio.abs().sum(1)
            columns[K3.name] = (log_ratio.expm1() - log_ratio).sum(1)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over all tokens."""
        count = columns["scored_tokens"]
        return [
            metric.mean_of(columns[metric.name], count)
            for metric in (LOG_PROBABILITY, GAP, K3)
            if metric.name in columns
        ]
