"""How many different experts do T consecutive tokens of a sequence use?

It is what a batch of T tokens reads from memory, or transfers. Every stretch of T tokens of a sequence counts, so it
does not matter where the first one begins. Beside it stand independent tokens with the same loads: an expert that a
token has with probability p_e is missing in T of them with (1 − p_e)^T, so they use Σ_e 1 − (1 − p_e)^T experts. Fewer
are used where tokens close to each other prefer the same experts.

Axes: B sequences, J tokens, E experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.sequences import WINDOW
from moeprobe.metrics.stats.distinct import DistinctRatio, IndependentDistinct
from moeprobe.metrics.token_kinds import EXPERTS

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.sequences import Sequences

DISTINCT_EXPERTS = Metric(
    "distinct_experts",
    about="different experts that T consecutive tokens of a sequence use, on average over all its stretches of T "
    "tokens; T is in the column severity",
    label="distinct experts of T tokens",
    short="distinct",
    noun="number of distinct experts of consecutive tokens",
    unit="count",
    rank=44,
    severity="tokens",
)
INDEPENDENT = Metric(
    "distinct_experts_independent",
    about="what distinct_experts would be if tokens chose independently of each other, each expert with the share of "
    "tokens that it has, Σ 1 − (1 − p)^T over the experts",
    label="  by independent tokens",
    unit="count",
    rank=45,
    severity="tokens",
)
EVEN = Metric(
    "distinct_experts_even",
    about="what distinct_experts would be if a router drew each token's k of E experts evenly, E (1 − (1 − k / E)^T)",
    label="  by an even router",
    unit="count",
    rank=46,
    severity="tokens",
)
DISTINCT_RATIO = Metric(
    "distinct_experts_ratio",
    about="distinct_experts divided by distinct_experts_independent: below 1 where tokens close to each other share "
    "experts",
    label="  observed / independent",
    unit="other",
    rank=46,
    severity="tokens",
)


class DistinctExperts(ModelAnalysis["Sequences"]):
    """Distinct experts of T consecutive tokens, beside independent tokens.

    The three pairs of neighbors in 0 0 1 1 use 1, 2 and 1 experts. Each expert has half of the choices in these pairs,
    so two independent tokens would use 2 · (1 − 0.5²) experts:

    >>> import torch
    >>> from moeprobe.metrics.analyses.distinct_experts import DistinctExperts
    >>> from moeprobe.metrics.by_hand import numbers
    >>> from moeprobe.metrics.sequences import Sequences
    >>> experts = torch.tensor([[[0], [0], [1], [1]]], dtype=torch.int16)
    >>> numbers(DistinctExperts(2), Sequences(experts, torch.ones(1, 4, dtype=torch.bool), num_experts=2))
    {'distinct_experts': 1.333, 'distinct_experts_independent': 1.5, 'distinct_experts_ratio': 0.889, \
'distinct_experts_even': 1.5}

    Args:
        size: T.
    """

    measures = (DISTINCT_EXPERTS, INDEPENDENT, DISTINCT_RATIO, EVEN)
    signature = "distinct_windows"

    def __init__(self, size: int = 2) -> None:
        self._size = size

    def sums(self, subject: Sequences) -> dict[str, Tensor]:
        """Return per sequence its windows, their distinct experts, and the choices in them by expert ``(B, E)``."""
        import torch

        uses, size = subject.uses, self._size
        # A window that holds a token has so many others, some of which may lie beyond the end of the run.
        other_tokens = size - 1
        beyond = np.maximum(other_tokens - uses.after, 0)
        holding = np.maximum(np.minimum(uses.before, other_tokens) + 1 - beyond, 0)
        # An expert is counted where a window has it first: none that begins before its last use.
        unused = np.minimum(uses.gap, uses.before)
        np.minimum(unused, other_tokens, out=unused)
        unused += 1 - beyond
        first_uses = np.maximum(unused, 0, out=unused).sum(0, dtype=np.int64)
        windows = uses.by_sequence(uses.after >= other_tokens)
        columns = {
            "distinct_windows": windows,
            "distinct_sum": uses.by_sequence(first_uses),
            "window_choices": uses.by_expert(holding),
            WINDOW: np.full(len(windows), size),
            "distinct_even": windows * even_distinct(subject.num_experts, subject.experts.shape[2], size),
            EXPERTS: np.full(len(windows), subject.num_experts),
        }
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the mean per window, the mean that independent tokens would have, and their ratio."""
        windows, size = columns["distinct_windows"], int(columns[WINDOW].max(initial=1))
        independent = IndependentDistinct(
            columns["window_choices"].astype(np.float64) / size, windows.astype(np.float64), size
        )
        distinct = columns["distinct_sum"]
        return [
            DISTINCT_EXPERTS.mean_of(distinct, windows),
            INDEPENDENT.raw(independent, windows),
            DISTINCT_RATIO.raw(DistinctRatio(distinct.astype(np.float64), independent), windows),
            EVEN.mean_of(columns["distinct_even"], windows),
        ]


def even_distinct(num_experts: int, top_k: int, tokens: int) -> float:
    """Return the distinct experts of tokens whose k experts are drawn evenly.

    >>> from moeprobe.metrics.analyses.distinct_experts import even_distinct
    >>> even_distinct(4, 2, 2)
    3.0
    """
    return num_experts * (1 - (1 - top_k / num_experts) ** tokens)
