"""How many tokens of calibration data reach each expert?

Quantizers (GPTQ, AWQ, NVFP4) fit an expert to the tokens that the router sends it. An expert with few of them is fitted
to their accidents. How many tokens are needed until every expert has n of them follows from all layers at once:
``probes/coverage`` computes these rows. Per expert the analysis says how many tokens an input brings.

Axes: B inputs (images, texts, requests), E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

_ORDERS = "in random orders of the inputs: the median, and a range that holds 95 % of the orders"
EXPERT_TOKENS = Metric(
    "expert_tokens",
    about="tokens that an input brings to the expert, on average",
    label="tokens of an expert per input",
    unit="count",
    rank=58,
    secondary=True,
)
COVERED = Metric(
    "experts_covered",
    about="share of the experts of all layers that have n tokens after so many tokens of the data, which the "
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
    about=f"tokens until every expert of every layer has n of them, in whole inputs, {_ORDERS}",
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
INPUTS_NEEDED = Metric(
    "inputs_needed",
    about=f"inputs (or units) until every expert of every layer has n tokens, {_ORDERS}",
    label="inputs until all experts have n",
    better="less",
    unit="whole",
    rank=62,
)
BELOW = Metric(
    "experts_below",
    about="experts of all layers that have fewer than n tokens in all the data",
    label="experts with fewer than n tokens",
    better="less",
    unit="whole",
    rank=63,
)
SUBSET_TOKENS = Metric(
    "subset_tokens",
    about="tokens of a greedy subset of the inputs, in which every expert has n tokens that has them in all the data",
    label="tokens of a greedy subset",
    unit="whole",
    rank=64,
)
SUBSET_INPUTS = Metric(
    "subset_inputs",
    about="inputs of that subset",
    label="inputs of a greedy subset",
    unit="whole",
    rank=65,
)


@dataclass(frozen=True)
class ExpertTokens:
    """The tokens of inputs in one layer.

    Attributes:
        tokens: ``(B,)``.
        uses: ``(B, E)`` those that each expert gets.
    """

    tokens: Tensor
    uses: Tensor


class ExpertCoverage(ModelAnalysis[ExpertTokens]):
    """Tokens that inputs bring to each expert.

    >>> import torch
    >>> from moeprobe.metrics.analyses.expert_coverage import ExpertCoverage, ExpertTokens
    >>> from moeprobe.metrics.by_hand import numbers
    >>> numbers(ExpertCoverage(), ExpertTokens(torch.tensor([2, 2]), torch.tensor([[2, 0], [1, 1]])))
    {'expert_tokens 0': 1.5, 'expert_tokens 1': 0.5}
    """

    measures = (
        EXPERT_TOKENS,
        COVERED,
        COVERED_EVEN,
        TOKENS_NEEDED,
        TOKENS_NEEDED_EVEN,
        INPUTS_NEEDED,
        BELOW,
        SUBSET_TOKENS,
        SUBSET_INPUTS,
    )
    signature = "covered_tokens"
    per_expert = "covered_uses"

    def sums(self, subject: ExpertTokens) -> dict[str, Tensor]:
        """Return per input its tokens, and those that each expert gets."""
        return {"covered_tokens": subject.tokens, "covered_uses": subject.uses}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the tokens per input of each expert."""
        uses, tokens = columns["covered_uses"], columns["covered_tokens"].astype(np.int64)
        inputs = (tokens > 0).astype(np.int64)
        return [
            EXPERT_TOKENS.mean_of(uses[:, expert], inputs, expert=expert) for expert in range(uses.shape[1])
        ]
