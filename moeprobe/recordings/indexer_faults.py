"""What is wrong with selections of a sparse-attention indexer as such, named as people know it.

A query that sees t keys selects min(t, K) of them: different positions from 0 to t − 1. So a query that sees no more
than K keys selects all of them, which says where positions and rows begin.

Axes: N pairs of query and layer, K places of a selection.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option

# What is wrong -> what is said after how many selections, the most telling first.
_FAULTS = {
    "zero": "hold 0 in every place: known as an all-zero capture, of a buffer that no layer wrote",
    "negative": "hold numbers below -1, which are no positions: known of memory that was not initialized",
    "from one": "hold the number of keys that their query sees, and none holds 0: known as a shift by one, of "
    "positions that are counted from 1",
    "one early": "hold the position after their query, and no position further on: known as a shift by one, of rows "
    f"that begin one token late; say where they begin with {option('start', 1)}",
    "beyond": "hold positions that their query does not see: known as physical slots of the KV cache in place of "
    "positions; ask the server for positions in the sequence",
    "duplicate": "hold a position twice: known as duplicates, of buffers that were written in part",
    "one late": "hold one position fewer than their query sees: known as a shift by one, of rows that belong to the "
    "token before",
    "short": "hold fewer positions than their query sees or K: known as truncated rows, of a smaller buffer or of "
    "another index_topk",
}


def count_repeats(keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return how many of the sorted keys ``(..., K)`` are equal to the key before."""
    repeats = keys[..., 1:] == keys[..., :-1]
    # Five times faster than a sum of booleans.
    return repeats.view(np.uint8).sum(-1, dtype=np.uint32).astype(np.int64)


class SelectionCheck:
    """A check of selections, in any number of parts."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._counts = dict.fromkeys(_FAULTS, 0)
        self._selections = self._captured = 0
        self._has_zero = False
        # Selections that reach beyond the visible keys, to the next position only: numbered one off.
        self._next = 0
        # Queries that see at most K keys should select all of them: how many there are, and how many lack one.
        self._lack_one = self._can_lack = 0

    def add(self, positions: NDArray[np.int32], visible: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Look at selections; returns which were captured ``(N,)``.

        Args:
            positions: ``(N, K)`` in ascending order; -1 = none.
            visible: ``(N,)`` keys that each query sees.
        """
        lowest, highest = positions[:, 0], positions[:, -1]
        size = np.full(len(positions), self._top_k)
        padded = lowest < 0
        of_padded = positions[padded]
        size[padded] = (of_padded >= 0).sum(1)
        empty = (size == 0) & (lowest >= -1)
        zero = (highest == 0) & (size > 1)
        negative = lowest < -1
        beyond = (highest >= visible) & ~zero & (size > 0)
        repeats = count_repeats(positions)
        duplicate = (repeats != np.maximum(self._top_k - size - 1, 0)) & ~negative & ~zero
        short = (size < np.minimum(visible, self._top_k)) & ~empty & ~negative
        faulty = {
            "zero": zero,
            "negative": negative,
            "beyond": beyond,
            "duplicate": duplicate,
            "short": short,
        }
        for name, which in faulty.items():
            self._counts[name] += int(which.sum())
        self._selections += len(positions)
        self._captured += int((~empty).sum())
        self._has_zero |= bool((lowest == 0).any() or (of_padded == 0).any())
        self._next += int((beyond & (highest == visible)).sum())
        complete = ~empty & (visible <= self._top_k)
        self._can_lack += int(complete.sum())
        self._lack_one += int((short & complete & (size == visible - 1)).sum())
        return ~empty | (visible == 0)

    def refuse(self, path: Path) -> None:
        """Raise ``UserError`` where the selections are no indexer's, or there is none."""
        if self._selections and not self._captured:
            raise UserError(
                f"{path}: all {self._selections:,} selections are -1 in every place, known as an all -1 capture; look "
                "at the server's setting for indexer_topk."
            )
        counts = dict(self._counts)
        if counts["beyond"] and self._next == counts["beyond"]:
            counts["one early" if self._has_zero else "from one"] = counts["beyond"]
        if counts["short"] and self._lack_one == counts["short"] == self._can_lack:
            counts["one late"] = counts["short"]
        name = next((name for name in _FAULTS if counts[name]), None)
        if name is not None:
            raise UserError(f"{path}: {counts[name]:,} of {self._selections:,} selections {_FAULTS[name]}.")
