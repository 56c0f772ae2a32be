"""Which experts does a whole request never use, while other requests do?

Such experts need no memory for this request. Beside their number stands the same for independent tokens with equal
loads: a rare expert sleeps through a short request by chance.

Axes: B sequences, E experts, n requests of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats import asleep

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.sequences import Sequences

ASLEEP = Metric(
    "asleep_experts",
    about="experts of the layer that no token of a request uses, although tokens of other requests do; mean over "
    "requests",
    label="experts asleep in a request",
    short="asleep",
    noun="number of experts asleep in a request",
    unit="count",
    rank=54,
)
INDEPENDENT = Metric(
    "asleep_experts_independent",
    about="what asleep_experts would be if tokens chose independently with the loads of all requests, Σ (1 − p)^T over "
    "the experts, with the T tokens of each request",
    label="  by independent tokens",
    unit="count",
    rank=55,
)
EXCESS = Metric(
    "asleep_experts_excess",
    about="asleep_experts minus asleep_experts_independent: above 0 where requests keep to experts of their own",
    label="  observed minus independent",
    unit="count",
    rank=56,
)
EXPERT_ASLEEP = Metric(
    "expert_asleep",
    about="share of the requests that never use the expert",
    label="requests in which the expert sleeps",
    rank=57,
    secondary=True,
)


class Asleep(ModelAnalysis["Sequences"]):
    """Experts that a request never uses, beside independent tokens.

    Of two experts each request uses one. Half of all four tokens use each, so two independent tokens would miss
    2 · 0.5² experts:

    >>> import torch
    >>> from moeprobe.metrics.analyses.asleep import Asleep
    >>> from moeprobe.metrics.by_hand import numbers
    >>> from moeprobe.metrics.sequences import Sequences
    >>> experts = torch.tensor([[[0], [0]], [[1], [1]]], dtype=torch.int16)
    >>> value = numbers(Asleep(), Sequences(experts, torch.ones(2, 2, dtype=torch.bool), num_experts=2))
    >>> [value[f"asleep_experts{name}"] for name in ("", "_independent", "_excess")]
    [1.0, 0.5, 0.5]
    """

    measures = (ASLEEP, INDEPENDENT, EXCESS, EXPERT_ASLEEP)
    signature = "request_tokens"
    per_expert = "request_uses"

    def sums(self, subject: Sequences) -> dict[str, Tensor]:
        """Return per sequence its tokens, and those that use each expert ``(B, E)``."""
        import torch

        uses = subject.uses
        unit_values = np.ones(len(uses.before), np.int32)
        return {
            "request_tokens": torch.from_numpy(uses.by_sequence(unit_values)),
            "request_uses": torch.from_numpy(uses.by_expert(unit_values)),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the experts asleep, also for independent tokens, and the share of requests of each expert."""
        tokens = columns["request_tokens"].astype(np.int64)
        uses = columns["request_uses"].astype(np.float64)
        has_tokens = (tokens > 0).astype(np.int64)
        # An expert that nobody uses is dead, and not asleep.
        observed = asleep.ObservedAsleep(uses, tokens.astype(np.float64))
        independent = asleep.IndependentAsleep(uses, tokens.astype(np.float64))
        return [
            ASLEEP.raw(observed, has_tokens),
            INDEPENDENT.raw(independent, has_tokens),
            EXCESS.raw(asleep.AsleepExcess(observed, independent), has_tokens),
            *(
                EXPERT_ASLEEP.share_of(
                    ((uses[:, expert] == 0) & (tokens > 0)).astype(np.int64), has_tokens, expert=expert
                )
                for expert in range(uses.shape[1])
            ),
        ]
