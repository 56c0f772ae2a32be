"""How many tokens of calibration data reach each expert?

Quantizers (GPTQ, AWQ, NVFP4) fit an expert to the tokens that the router sends it. An expert with few of them is fitted
to their accidents. How many tokens are needed until every expert has n of them follows from all layers at once:
``recorded/coverage`` computes these rows. Per expert the analysis says how many tokens a request brings.

Axes: B sequences, E experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.sequences import Sequences

_ORDERS = "in random orders of the requests: the median, and a range that holds 95 % of the orders"
EXPERT_TOKENS = Metric(
    "expert_tokens",
    about="tokens that a request brings to the expert, on average",
    label="tokens of an expert per request",
    unit="count",
    rank=58,
    secondary=True,
)
COVERED = Metric(
    "experts_covered",
    about="share of the experts of all layers that have n tokens after so many tokens of the recording, which the "
    f"column severity counts, {_ORDERS}",
    label="experts with n tokens",
    noun="share of experts with n tokens",
    better="more",
    rank=59,
    severity="tokens",
)
COVERED_EVEN = Metric(
    "experts_covered_even",
    about="experts_covered of a router that draws each token's k of E experts evenly; exact",
    label="  by an even router",
    rank=60,
    severity="tokens",
)
TOKENS_NEEDED = Metric(
    "tokens_needed",
    about=f"tokens until every expert of every layer has n of them, in whole requests, {_ORDERS}",
    label="tokens until all experts have n",
    better="less",
    unit="whole",
    rank=61,
)
TOKENS_NEEDED_EVEN = Metric(
    "tokens_needed_even",
    about="tokens_needed of a router that draws evenly (coupon collector): the median, and a range that holds 95 %; "
    "experts are treated as independent of each other",
    label="  by an even router",
    unit="whole",
    rank=62,
)
BELOW = Metric(
    "experts_below",
    about="experts of all layers that have fewer than n tokens in the whole recording",
    label="experts with fewer than n tokens",
    better="less",
    unit="whole",
    rank=63,
)
SUBSET_TOKENS = Metric(
    "subset_tokens",
    about="tokens of a greedy subset of the requests, in which every expert has n tokens that has them in the whole "
    "recording",
    label="tokens of a greedy subset",
    unit="whole",
    rank=64,
)
SUBSET_REQUESTS = Metric(
    "subset_requests",
    about="requests of that subset",
    label="requests of a greedy subset",
    unit="whole",
    rank=65,
)


class ExpertCoverage(ModelAnalysis["Sequences"]):
    """Tokens that requests bring to each expert.

    >>> import torch
    >>> from moeprobe.metrics.analyses.expert_coverage import ExpertCoverage
    >>> from moeprobe.metrics.by_hand import numbers
    >>> from moeprobe.metrics.sequences import Sequences
    >>> experts = torch.tensor([[[0], [0]], [[1], [0]]], dtype=torch.int16)
    >>> numbers(ExpertCoverage(), Sequences(experts, torch.ones(2, 2, dtype=torch.bool), num_experts=2))
    {'expert_tokens 0': 1.5, 'expert_tokens 1': 0.5}
    """

    measures = (
        EXPERT_TOKENS,
        COVERED,
        COVERED_EVEN,
        TOKENS_NEEDED,
        TOKENS_NEEDED_EVEN,
        BELOW,
        SUBSET_TOKENS,
        SUBSET_REQUESTS,
    )
    signature = "covered_tokens"
    per_expert = "covered_uses"

    def sums(self, subject: Sequences) -> dict[str, Tensor]:
        """Return per sequence its tokens, and those that use each expert ``(B, E)``."""
        import torch

        uses = subject.uses
        unit_values = np.ones(len(uses.before), np.int32)
        return {
            "covered_tokens": torch.from_numpy(uses.by_sequence(unit_values)),
            "covered_uses": torch.from_numpy(uses.by_expert(unit_values)),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the tokens per request of each expert."""
        uses, tokens = columns["covered_uses"], columns["covered_tokens"].astype(np.int64)
        requests = (tokens > 0).astype(np.int64)
        return [
            EXPERT_TOKENS.mean_of(uses[:, expert], requests, expert=expert) for expert in range(uses.shape[1])
        ]
