"""The choices of the tokens of sequences, and when each expert was last used: what analyses of reuse begin with.

A run is a stretch of tokens that are all present and follow one another.

Axes: B sequences, J tokens, K choices of a token, E experts, M tokens that are present, one sequence after the other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Integers

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor

# Column of the number of tokens of a window, the same in every sequence.
WINDOW = "window_tokens"
# The gap of a choice whose expert was not used before in its run, above all others; and of a choice that is missing.
NEVER, MISSING = np.iinfo(np.int32).max, -1
# Users (an expert of a sequence) that are sorted at a time: NumPy sorts 16 bits much faster than more.
_USERS = 2**16


@dataclass(frozen=True)
class Sequences:
    """What some tokens of sequences chose in one layer.

    Attributes:
        experts: ``(B, J, K)`` int16, -1 = none, no expert twice.
        present: ``(B, J)`` bool, the tokens that are looked at.
        num_experts: E.
        superset: the same sequences with more tokens, whose uses are computed already; None = these are all.
    """

    experts: Tensor
    present: Tensor
    num_experts: int
    superset: Sequences | None = None

    @cached_property
    def uses(self) -> ExpertUses:
        """The uses of experts by the tokens that are present."""
        if self.superset is not None:
            return self.superset.uses.part(self.present.numpy())
        return ExpertUses.of(self.experts.numpy(), self.present.numpy(), self.num_experts)


@dataclass(frozen=True)
class ExpertUses:
    """The choices of the tokens that are present, and where these lie in their runs.

    Attributes:
        sequence: ``(M,)`` the sequence of each token, ascending.
        position: ``(M,)`` its place in the sequence, ascending.
        before: ``(M,)`` int32, tokens of its run before it.
        after: ``(M,)`` int32, tokens of its run after it.
        experts: ``(K, M)``, -1 = none.
        gap: ``(K, M)`` int32, tokens between a choice and the last use of its expert in the run; ``NEVER`` where there
            is none, and ``MISSING`` where the choice is.
        num_sequences: B.
        num_experts: E.
    """

    sequence: Integers
    position: Integers
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    experts: NDArray[np.int16]
    gap: NDArray[np.int32]
    num_sequences: int
    num_experts: int

    @classmethod
    def of(cls, experts: NDArray[np.int16], present: NDArray[np.bool_], num_experts: int) -> ExpertUses:
        """Return the choices of tokens ``(B, J, K)`` that are present ``(B, J)``."""
        sequence, position = np.nonzero(present)
        before, after = _runs(present, sequence, position)
        token_experts = experts[present]
        gap = np.empty(token_experts.shape, np.int32)
        # Whole sequences at a time.
        at_once = max((_USERS - 1) // num_experts, 1)
        ends = np.searchsorted(sequence, np.arange(0, len(present) + at_once, at_once))
        for number, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
            row = sequence[start:end] - number * at_once
            gap[start:end] = _gaps(token_experts[start:end], row, num_experts)
        uses = cls(
            sequence,
            position,
            before,
            after,
            np.ascontiguousarray(token_experts.T),
            np.ascontiguousarray(gap.T),
            len(present),
            num_experts,
        )
        uses._forget_other_runs()
        return uses

    def part(self, present: NDArray[np.bool_]) -> ExpertUses:
        """Return the choices of some of the tokens ``(B, J)``, in whose runs no token of these is missing."""
        is_part = present[self.sequence, self.position]
        sequence, position = self.sequence[is_part], self.position[is_part]
        uses = ExpertUses(
            sequence,
            position,
            *_runs(present, sequence, position),
            self.experts[:, is_part],
            self.gap[:, is_part],
            self.num_sequences,
            self.num_experts,
        )
        uses._forget_other_runs()
        return uses

    @cached_property
    def choices(self) -> NDArray[np.int32]:
        """``(M,)`` choices of each token."""
        return np.asarray((self.gap != MISSING).sum(0, dtype=np.int32))

    def by_sequence(self, values: NDArray[np.generic]) -> Integers:
        """Return the sums of whole numbers of the tokens ``(M,)`` in each sequence ``(B,)``."""
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        sums: Integers = np.diff(total[self._ends])
        return sums

    def by_expert(self, values: NDArray[np.generic]) -> Integers:
        """Return the sums of whole numbers of the tokens ``(M,)`` by sequence and expert ``(B, E)``."""
        # Sums of whole numbers are exact in float64.
        sums = self._users @ values.astype(np.float64)
        return np.asarray(sums[:-1].reshape(-1, self.num_experts), dtype=np.int64)

    @cached_property
    def _ends(self) -> Integers:
        return np.searchsorted(self.sequence, np.arange(self.num_sequences + 1))

    @cached_property
    def _users(self) -> sparse.csc_array:
        """Which token ``M`` has which expert of which sequence ``B · E``, the last row being of missing choices."""
        from scipy import sparse  # here, since runs are checked without

        top_k, tokens = self.experts.shape
        users = (self.sequence * self.num_experts + self.experts).astype(np.int32)
        users[self.experts < 0] = self.num_sequences * self.num_experts
        starts = np.arange(0, tokens * top_k + 1, top_k, dtype=np.int32)
        shape = self.num_sequences * self.num_experts + 1, tokens
        return sparse.csc_array((np.ones(users.size), users.T.ravel(), starts), shape=shape)

    def _forget_other_runs(self) -> None:
        """Let choices whose expert was last used before their run have no last use."""
        np.copyto(self.gap, NEVER, where=self.gap >= self.before)


def _gaps(experts: NDArray[np.int16], row: Integers, num_experts: int) -> NDArray[np.int32]:
    """Return the gaps ``(m, K)`` of the choices of tokens of some sequences ``(m,)``, whatever their runs.

    Tokens that are absent are not counted, so gaps are wrong where the run is another.
    """
    missing = experts < 0
    user = row[:, None] * num_experts + experts
    user[missing] = _USERS - 1
    flat = user.astype(np.uint16).ravel()
    # Choices come token by token, so a stable sort leaves those of an expert in order.
    order = np.argsort(flat, kind="stable")
    ordered, token = flat[order], order // experts.shape[1]
    gap = np.diff(token, prepend=0) - 1
    gap[np.diff(ordered, prepend=ordered[:1]) != 0] = NEVER
    gap[:1] = NEVER
    gaps = np.empty(experts.shape, np.int32)
    gaps.ravel()[order] = gap
    gaps[missing] = MISSING
    return gaps


def _runs(
    present: NDArray[np.bool_], sequence: Integers, position: Integers
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return how many tokens of its run are before and after each present token ``(M,)`` of ``present`` ``(B, J)``."""
    token_places = np.arange(present.shape[1])
    earlier, later = (
        np.pad(part, ((0, 0), pad)) for part, pad in ((present[:, :-1], (1, 0)), (present[:, 1:], (0, 1)))
    )
    first = np.maximum.accumulate(np.where(earlier, 0, token_places), axis=1)
    reverse = np.where(later, present.shape[1], token_places)[:, ::-1]
    last = np.minimum.accumulate(reverse, axis=1)[:, ::-1]
    before, after = position - first[sequence, position], last[sequence, position] - position
    return before.astype(np.int32), after.astype(np.int32)
