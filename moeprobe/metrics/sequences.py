"""The choices of the tokens of sequences, and when each expert was last used: what analyses of reuse begin with.

A run is a stretch of tokens that are all present and follow one another.

Axes: B sequences, J tokens, K choices of a token, E experts, N choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Integers

if TYPE_CHECKING:
    from torch import Tensor

# Column of the number of tokens of a window, the same in every sequence.
WINDOW = "window_tokens"


@dataclass(frozen=True)
class Sequences:
    """What some tokens of sequences chose in one layer.

    Attributes:
        experts: ``(B, J, K)`` int16, -1 = none, no expert twice.
        present: ``(B, J)`` bool, the tokens that are looked at.
        num_experts: E.
    """

    experts: Tensor
    present: Tensor
    num_experts: int

    @cached_property
    def uses(self) -> ExpertUses:
        """The uses of experts by the tokens that are present: one for each choice."""
        return ExpertUses.of(self.experts.numpy(), self.present.numpy(), self.num_experts)


@dataclass(frozen=True)
class ExpertUses:
    """The choices of some sequences, and where their tokens lie in their runs.

    Attributes:
        sequence: ``(N,)`` the sequence of each choice.
        position: ``(N,)`` the place of its token in the sequence.
        expert: ``(N,)``.
        last_use: ``(N,)`` the place of the token before that used the same expert; -1 = none did.
        first: ``(B, J)`` where the run of each present token begins.
        last: ``(B, J)`` where it ends.
        present: ``(B, J)``.
    """

    sequence: Integers
    position: Integers
    expert: Integers
    last_use: Integers
    first: Integers
    last: Integers
    present: NDArray[np.bool_]

    @classmethod
    def of(cls, experts: NDArray[np.int16], present: NDArray[np.bool_], num_experts: int) -> ExpertUses:
        """Return the choices of tokens ``(B, J, K)`` that are present ``(B, J)``."""
        sequence, position, rank = np.nonzero(present[..., None] & (experts >= 0))
        expert = experts[sequence, position, rank].astype(np.int64)
        # Choices come sequence by sequence and token by token, so a stable sort leaves those of an expert in order.
        user = sequence * num_experts + expert
        order = np.argsort(user, kind="stable")
        last_use = np.full(len(user), -1)
        again = user[order][1:] == user[order][:-1]
        last_use[order[1:][again]] = position[order[:-1][again]]
        return cls(sequence, position, expert, last_use, *_runs(present), present)

    def by_sequence(self, values: NDArray[np.generic]) -> Integers:
        """Return the sums of whole numbers of the choices ``(N,)`` in each sequence ``(B,)``."""
        sums = np.zeros(len(self.present), np.int64)
        # Choices ascend by their sequence.
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        ends = np.searchsorted(self.sequence, np.arange(len(sums) + 1))
        sums[:] = np.diff(total[ends])
        return sums

    def by_expert(self, values: NDArray[np.generic], num_experts: int) -> Integers:
        """Return the sums of whole numbers of the choices ``(N,)`` by sequence and expert ``(B, E)``."""
        size = len(self.present) * num_experts
        # Sums of whole numbers are exact in float64.
        sums = np.bincount(self.sequence * num_experts + self.expert, weights=values, minlength=size)
        return sums.reshape(-1, num_experts).astype(np.int64)

    @cached_property
    def run_first(self) -> Integers:
        """``(N,)`` where the run of the token of each choice begins."""
        return self.first[self.sequence, self.position]

    @cached_property
    def run_last(self) -> Integers:
        """``(N,)`` where it ends."""
        return self.last[self.sequence, self.position]


def _runs(present: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Return where the run of each present token ``(B, J)`` begins and ends; arbitrary where it is absent."""
    position = np.arange(present.shape[1])
    before, after = (
        np.pad(part, ((0, 0), pad)) for part, pad in ((present[:, :-1], (1, 0)), (present[:, 1:], (0, 1)))
    )
    first = np.maximum.accumulate(np.where(before, 0, position), axis=1)
    reverse = np.where(after, present.shape[1], position)[:, ::-1]
    return first, np.minimum.accumulate(reverse, axis=1)[:, ::-1]
