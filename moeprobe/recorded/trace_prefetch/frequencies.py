"""Conditional frequencies of experts, fitted on other requests, and how often their highest ones are chosen.

Axes: B sequences, J tokens, K choices of a token, E experts, D experts that a prediction is made from, F folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers

# Scores that are in memory at a time.
_SCORES = 2**23


def marks_of(experts: NDArray[np.int16], present: NDArray[np.bool_], num_experts: int) -> NDArray[np.float32]:
    """Return which experts tokens ``(B, J, K)`` have, as ``(B, J, E)`` of 0 and 1; none of absent tokens."""
    marks = np.zeros((*present.shape, num_experts + 1), np.float32)
    expert_index = np.where(present[..., None] & (experts >= 0), experts, num_experts).astype(np.int64)
    np.put_along_axis(marks, expert_index, 1, axis=2)
    return marks[..., :num_experts]


def pair_counts(cues: NDArray[np.float32], targets: NDArray[np.float32]) -> Integers:
    """Return in how many tokens expert d is known and expert e chosen ``(D, E)``; marks ``(..., D)``, ``(..., E)``.

    >>> import numpy as np
    >>> from moeprobe.recorded.trace_prefetch.frequencies import pair_counts
    >>> pair_counts(np.array([[1, 0], [1, 0]], np.float32), np.array([[1, 0], [0, 1]], np.float32)).tolist()
    [[1, 1], [0, 0]]
    """
    flat = cues.reshape(-1, cues.shape[-1]), targets.reshape(-1, targets.shape[-1])
    # Whole numbers below 2^24 are exact in float32.
    return np.rint(flat[0].T @ flat[1]).astype(np.int64)


@dataclass(frozen=True)
class Frequencies:
    """How often an expert is chosen where another is known, in the requests of other folds.

    Attributes:
        conditional: ``(F, D, E)`` the share of the tokens with d that choose e.
        busiest: ``(F, E)`` the share of all tokens that choose e.
    """

    conditional: Array
    busiest: Array

    @classmethod
    def of(cls, pairs: Integers, cues: Integers, targets: Integers, tokens: Integers) -> "Frequencies":
        """Return them for counts by fold, each without its own.

        Args:
            pairs: ``(F, D, E)`` tokens with both.
            cues: ``(F, D)`` tokens with d.
            targets: ``(F, E)`` tokens with e.
            tokens: ``(F,)``.
        """
        pairs, cues, targets, tokens = (part.sum(0) - part for part in (pairs, cues, targets, tokens))
        busiest = targets / np.maximum(tokens, 1)[:, None]
        # An expert that others never use counts as one token with the usual experts.
        conditional = (pairs + busiest[:, None]) / (cues + 1)[..., None]
        return cls(conditional.astype(np.float32), busiest.astype(np.float32))

    def scores(self, cues: NDArray[np.float32], fold: int) -> NDArray[np.float32]:
        """Return the score of each expert ``(..., E)`` for marks of known experts ``(..., D)``."""
        scores: NDArray[np.float32] = cues @ self.conditional[fold]
        return scores


def found_among(
    scores: NDArray[np.float32],
    busiest: NDArray[np.float32],
    targets: NDArray[np.float32],
    sizes: Sequence[int],
) -> Integers:
    """Return how many chosen experts are among those with the highest scores ``(..., S)``.

    Args:
        scores: ``(..., E)``.
        busiest: ``(E,)``, by which ties are broken, and then by number.
        targets: ``(..., E)`` marks of the chosen experts.
        sizes: how many experts are predicted.
    """
    number = scores.shape[-1]
    ties = np.empty(number, np.float32)
    # Far below any difference of two frequencies that means something, and no two alike.
    ties[np.argsort(busiest, kind="stable")] = np.arange(number, dtype=np.float32)
    untied = scores.astype(np.float64) + 1e-9 * ties
    descending = np.sort(untied, axis=-1)[..., ::-1]
    lowest = descending[..., np.minimum(np.asarray(sizes), number) - 1]
    hits = [
        ((untied >= lowest[..., [index]]) * targets).sum(-1, dtype=np.float64) for index in range(len(sizes))
    ]
    return np.rint(np.stack(hits, axis=-1)).astype(np.int64)


def parts(rows: int, tokens: int, num_experts: int) -> list[slice]:
    """Return the rows of sequences of so many tokens in parts whose scores fit into memory."""
    size = max(_SCORES // max(tokens * num_experts, 1), 1)
    return [slice(start, start + size) for start in range(0, rows, size)]
