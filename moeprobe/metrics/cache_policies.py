"""Hits of a cache of experts along sequences, under five rules of eviction, for several sizes of the cache at once.

A token looks its experts up together, at most K; then all of them are in the cache. What leaves in their place is never
one of these. At the first token the cache holds the experts that are busiest elsewhere. Rules, all with C places:

* lru: evicts the experts whose last use is longest ago.
* lfu: evicts the experts that the sequence used least often. Uses of evicted experts are remembered.
* static: evicts nothing: the C experts that are busiest elsewhere, always.
* optimal: Bélády's rule, which evicts the experts whose next use is furthest away. No rule that evicts has more hits.
* random: evicts at random, in expectation. A cached expert survives a token with probability (C − k) / (C − hits), with
  the token's k experts. Hits are replaced by their mean there (mean field).

Where recency or counts are equal, the expert that is busier elsewhere stays.

Source of caches of all sizes at once: Mattson, Gecsei, Slutz and Traiger 1970, "Evaluation techniques for storage
hierarchies".

Steps go through the positions of sequences, each for all sequences at once. Axes: R sequences, J tokens, K choices of a
token, E experts, S sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers

POLICIES = ("lru", "lfu", "static", "optimal", "random")
_NEVER, _LOWEST, _MOST_IN_A_BYTE = np.iinfo(np.int32).max, np.iinfo(np.int32).min, np.iinfo(np.int8).max
# Choices of sequences that are in memory at a time, and an eighth as many experts of them.
_ENTRIES = 2**21
Kind = TypeVar("Kind", bound=np.signedinteger[Any])


@dataclass(frozen=True)
class Lookups:
    """What the tokens of some sequences look up.

    Attributes:
        experts: ``(R, J, K)``, -1 = none, no expert twice in a token.
        present: ``(R, J)`` bool, the tokens that look anything up.
        heat: ``(R, E)`` the rank of each expert elsewhere, 0 = busiest; None = not known, and caches begin empty.
        num_experts: E.
    """

    experts: NDArray[np.int16] | Integers
    present: NDArray[np.bool_]
    heat: Integers | None
    num_experts: int

    def hits(self, sizes: Sequence[int], groups: NDArray[np.bool_]) -> Array:
        """Return how many experts of the tokens of each group are found ``(G, R, S, P)``, by ``POLICIES``.

        Args:
            sizes: numbers of cached experts C, each above K and at most E, ascending.
            groups: ``(G, R, J)`` which tokens are counted together; absent ones find nothing.
        """
        rows, length = self.present.shape
        hits = np.zeros((len(groups), rows, len(sizes), len(POLICIES)))
        # Long sequences first, so that those in use are always the first ones.
        order = np.argsort(-self.present.sum(1), kind="stable")
        at_once = max(_ENTRIES // max(length * self.experts.shape[2], 8 * self.num_experts), 1)
        for start in range(0, rows, at_once):
            part = order[start : start + at_once]
            hits[:, part] = self._simulate(part, np.asarray(sizes), groups[:, part]).transpose(0, 3, 2, 1)
        return hits

    def _simulate(self, part: Integers, sizes: Integers, groups: NDArray[np.bool_]) -> Array:
        """Return the hits ``(G, P, S, r)`` of some sequences, the longest first."""
        present = self.present[part]
        # Absent tokens move to the end: a cache stays as it is while they pass.
        order = np.argsort(~present, axis=1, kind="stable")
        lengths = present.sum(1)
        order = order[:, : int(lengths.max(initial=0))]
        experts = np.take_along_axis(self.experts[part], order[..., None], 1)
        heat = None if self.heat is None else self.heat[part]
        steps = _Steps(experts, lengths, heat, self.num_experts)
        return steps.hits(sizes, np.take_along_axis(groups, order[None], 2).transpose(0, 2, 1).copy())


class _Steps:
    """The lookups of sequences without gaps, the longest first, position by position.

    Tables by sequence and expert are flat, and experts are indices into them. There is one index more, of a missing
    choice, at which nothing is ever found.

    Args:
        experts: ``(R, J, K)``, -1 = none.
        lengths: ``(R,)``, descending.
        heat: ``(R, E)``, as in ``Lookups``.
        num_experts: E.
    """

    def __init__(
        self, experts: NDArray[np.generic], lengths: Integers, heat: Integers | None, num_experts: int
    ) -> None:
        self._rows, self._length, self._top_k = experts.shape
        self._is_warm = heat is not None
        self._active = np.searchsorted(-lengths, -np.arange(self._length), side="left")
        by_step = np.array(experts.transpose(1, 2, 0), np.intp, order="C")
        is_missing = by_step < 0
        # ``(J, R)`` experts of each token.
        self._choices = self._top_k - np.count_nonzero(is_missing, axis=1)
        # ``(J, K, R)`` places in the tables.
        by_step += np.arange(self._rows) * num_experts
        by_step[is_missing] = self._rows * num_experts
        self._expert_index = by_step
        if heat is None:
            heat = np.broadcast_to(np.arange(num_experts), (self._rows, num_experts))
        self._ranks = heat

    def hits(self, sizes: Integers, groups: NDArray[np.bool_]) -> Array:
        """Return the hits ``(G, P, S, R)`` of each rule in groups of tokens ``(G, J, R)``."""
        shape = len(POLICIES), len(sizes), self._rows
        hits, of_step = np.zeros((len(groups), *shape)), np.empty(shape, np.float32)
        following, first = self._next_uses()
        recency = _ByRecency(self._ranks, self._length, sizes, is_warm=self._is_warm)
        counts = _ByCount(self._ranks, self._length, self._top_k, sizes, is_warm=self._is_warm)
        by_heat = np.take_along_axis(first, np.argsort(self._ranks, axis=1), 1) if self._is_warm else None
        optimal = _Optimal(self._rows, self._top_k, sizes, by_heat)
        at_random = _AtRandom(self._ranks, self._length, sizes, is_warm=self._is_warm)
        # Where nothing is known of other requests, no expert is among the busiest.
        busiest = sizes.astype(np.int32)[:, None] * np.int32(self._is_warm)
        ranks = _with_none(self._ranks, self._ranks.shape[1], np.int32)
        for step, active in enumerate(self._active.tolist()):
            expert_index, choices = self._expert_index[step, :, :active], self._choices[step, :active]
            of_rules = {
                "lru": recency.step(step, expert_index),
                "lfu": counts.step(expert_index, choices),
                "static": _count(ranks.take(expert_index)[:, None] < busiest),
                "optimal": optimal.step(step, following[step, :active]),
                "random": at_random.step(step, expert_index, choices),
            }
            for index, policy in enumerate(POLICIES):
                of_step[index, :, :active] = of_rules[policy]
            for group, of_group in zip(groups[:, step, :active], hits, strict=True):
                # Most often all tokens at a position are of the same group.
                if group.all():
                    of_group[..., :active] += of_step[..., :active]
                elif group.any():
                    of_group[..., :active] += of_step[..., :active] * group
        return hits

    def _next_uses(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return when the expert of each choice is used next ``(J, R, K)``, and when each is first used ``(R, E)``.

        ``_NEVER`` where it is not, and -1 for a choice that is missing.
        """
        following = np.empty((self._length, self._rows, self._top_k), np.int32)
        table = np.full(self._ranks.size + 1, _NEVER, np.int32)
        table[-1] = -1
        for step in range(self._length - 1, -1, -1):
            expert_index = self._expert_index[step, :, : self._active[step]]
            following[step, : self._active[step]] = table.take(expert_index).T
            table[expert_index] = step
            table[-1] = -1
        return following, table[:-1].reshape(self._ranks.shape)


def _with_none(values: NDArray[np.generic], none: int, kind: type[Kind]) -> NDArray[Kind]:
    """Return values by sequence and expert ``(R, E)`` as a flat table, with that of a missing choice behind them."""
    return np.append(values.astype(kind).ravel(), kind(none))


def _count(is_found: NDArray[np.bool_]) -> NDArray[np.signedinteger[Any]]:
    """Return how many of the first axis are found."""
    # The fewer bits, the faster.
    kind = np.int8 if len(is_found) <= _MOST_IN_A_BYTE else np.int16
    counts: NDArray[np.signedinteger[Any]] = is_found.sum(0, dtype=kind)
    return counts


class _ByRecency:
    """The experts that were used last: one order of them has the caches of all sizes.

    An expert's key is the step of its last use times E, plus how busy it is elsewhere, so that no two are equal.

    Args:
        ranks: ``(R, E)`` of each expert elsewhere, 0 = busiest.
        length: J.
        sizes: ``(S,)`` places.
        is_warm: whether experts that were not used are in the cache, too.
    """

    def __init__(self, ranks: Integers, length: int, sizes: Integers, *, is_warm: bool) -> None:
        self._number = ranks.shape[1]
        kind = np.int32 if (length + 2) * self._number < _NEVER else np.int64
        self._tie = _with_none(self._number - 1 - ranks, -1, kind)
        self._keys = self._tie.copy()
        self._by_row = self._keys[:-1].reshape(ranks.shape)
        self._lowest_of = self._number - sizes
        self._floor = 0 if is_warm else self._number

    def step(self, position: int, experts: NDArray[np.intp]) -> NDArray[np.signedinteger[Any]]:
        """Return how many of the experts ``(K, r)`` at a position are found ``(S, r)``, and let them be used."""
        keys = np.sort(self._by_row[: experts.shape[1]], axis=1)
        lowest = np.maximum(keys[:, self._lowest_of].T, self._floor)
        step_hits = _count(self._keys.take(experts)[:, None] >= lowest)
        self._keys[experts] = self._tie.take(experts) + (position + 1) * self._number
        self._keys[-1] = -1
        return step_hits


class _Levels:
    """Caches of all sizes at once: what each holds beside the one before it, as keys by which experts are ranked.

    Where keys do not depend on the size, a smaller cache is within a larger one: both keep the experts of a token, and
    the best of what they had. So what leaves a cache comes to the next one, and is looked for among as many experts as
    the two differ by.

    Args:
        by_heat: ``(R, E)`` keys of the experts, those that are busy elsewhere first; None = caches begin empty.
        rows: R.
        top_k: K.
        sizes: ``(S,)`` places, each above K, ascending.
        none: the key of a place without an expert: it leaves before any other.
        kind: of the keys.

    Attributes:
        keys: ``(R, sum of widths)``, one part after the other: its own places, and K more for what comes.
        parts: of each cache, where its part begins, its own places, and where it ends.
    """

    def __init__(
        self,
        by_heat: NDArray[np.signedinteger[Any]] | None,
        rows: int,
        top_k: int,
        sizes: Integers,
        *,
        none: int,
        kind: type[np.signedinteger[Any]],
    ) -> None:
        widths = np.diff(sizes, prepend=0)
        ends = np.cumsum(widths + top_k)
        self.parts = [
            (int(end - width - top_k), int(width), int(end)) for width, end in zip(widths, ends, strict=True)
        ]
        self.keys = np.full((rows, int(ends[-1])), none, kind)
        if by_heat is not None:
            for (start, width, _), size in zip(self.parts, sizes.tolist(), strict=True):
                self.keys[:, start : start + width] = by_heat[:, size - width : size]


class _ByCount:
    """Caches that evict what was used least often.

    An expert's key is how often it was used, then how busy it is elsewhere: that part of it also says which expert it
    is. Caches hold them as negative numbers, so that what leaves comes last.

    Args:
        ranks: ``(R, E)`` of each expert elsewhere, 0 = busiest.
        length: J.
        top_k: K.
        sizes: ``(S,)`` places.
        is_warm: whether experts that were not used are in the cache, too.
    """

    def __init__(self, ranks: Integers, length: int, top_k: int, sizes: Integers, *, is_warm: bool) -> None:
        rows, number = ranks.shape
        # A power of two above E, so that 0 is the part of a key that is of no expert.
        self._once = 1 << number.bit_length()
        # Keys of a token's own experts are above all others by this much while it is looked up.
        self._above = (length + 2) * self._once
        kind = np.int32 if 2 * self._above < _NEVER else np.int64
        self._keys = _with_none(number - ranks, 0, kind)
        by_heat = np.broadcast_to(np.arange(-number, 0), ranks.shape) if is_warm else None
        self._levels = _Levels(by_heat, rows, top_k, sizes, none=0, kind=kind)
        # Which experts a token has, by sequence and by how busy they are elsewhere.
        self._is_chosen = np.zeros(rows * self._once, bool)
        self._first_of_row = np.arange(rows, dtype=np.intp) * self._once
        # Where the places of each cache begin, and where they end.
        self._ends = np.array([(start, start + width) for start, width, _ in self._levels.parts]).ravel()

    def step(self, experts: NDArray[np.intp], choices: Integers) -> NDArray[np.signedinteger[Any]]:
        """Return how many of the experts ``(K, r)`` are found ``(S, r)``, and let them be used.

        ``choices`` ``(r,)``: experts of each token.
        """
        top_k, rows = experts.shape
        before = self._keys.take(experts)
        keys = before + self._once
        if (choices < top_k).any():
            keys[before == 0] = 0
        self._keys[experts] = keys
        self._keys[-1] = 0
        # A token's experts leave their places. That of a missing choice is marked where no expert is.
        cached, first = self._levels.keys[:rows], self._first_of_row[:rows]
        marks = (before & (self._once - 1)) + first
        self._is_chosen[marks] = True
        is_found = self._is_chosen.take((-cached & (self._once - 1)) + first[:, None])
        self._is_chosen[marks] = False
        is_found &= cached < 0
        np.copyto(cached, 0, where=is_found)
        hits = np.add.reduceat(is_found, self._ends, axis=1, dtype=np.int16)[:, ::2].cumsum(1, dtype=np.int16)
        coming = np.where(keys > 0, -self._above - keys, 0).T
        for index, (start, width, end) in enumerate(self._levels.parts):
            part = cached[:, start:end]
            part[:, width:] = coming
            part.sort(axis=1)
            # What was used least often leaves for the next cache.
            coming = part[:, width:]
            if index == 0:
                # From now on the token's experts count as they are.
                of_token = part[:, :top_k]
                np.add(of_token, self._above, out=of_token, where=of_token < -self._above)
        return hits.T


class _Optimal:
    """The next uses of what is in the cache: Bélády's rule needs no more, and not which experts they are of.

    Args:
        rows: R.
        top_k: K.
        sizes: ``(S,)`` places.
        by_heat: ``(R, E)`` first uses, those of experts that are busy elsewhere first; None = caches begin empty.
    """

    def __init__(self, rows: int, top_k: int, sizes: Integers, by_heat: NDArray[np.int32] | None) -> None:
        self._top_k = top_k
        # What is never used again is as good as nothing.
        self._levels = _Levels(by_heat, rows, top_k, sizes, none=_NEVER, kind=np.int32)
        for start, width, _ in self._levels.parts:
            self._levels.keys[:, start : start + width].sort(axis=1)
        # Flags of choices in whole words, since their bits are counted much faster than rows of them are summed.
        self._is_hit = np.zeros((rows, -(-top_k // 8) * 8), bool)

    def step(self, position: int, following: NDArray[np.int32]) -> NDArray[np.uint16]:
        """Return how many experts of the tokens at a position are found ``(S, r)``, and move on.

        ``following`` ``(r, K)``: the next uses of these experts, -1 where a choice is missing.
        """
        rows = len(following)
        hits = np.empty((len(self._levels.parts), rows), np.uint16)
        words, is_hit = self._is_hit[:rows].view(np.uint64), self._is_hit[:rows, : self._top_k]
        # The token's own experts stay, so they come with negative numbers.
        coming = np.where(following < 0, _NEVER, following + np.int32(_LOWEST))
        for index, (start, width, end) in enumerate(self._levels.parts):
            part = self._levels.keys[:rows, start:end]
            # The next uses come first: at most K of them are now.
            soonest = part[:, : min(width, self._top_k)]
            np.equal(soonest, position, out=is_hit[:, : soonest.shape[1]])
            is_hit[:, soonest.shape[1] :] = False
            np.bitwise_count(words).sum(1, dtype=np.uint16, out=hits[index])
            np.copyto(soonest, _NEVER, where=is_hit[:, : soonest.shape[1]])
            part[:, width:] = coming
            part.sort(axis=1)
            # The latest uses leave for the next cache.
            coming = part[:, width:]
            if index == 0:
                of_token = part[:, : self._top_k]
                np.subtract(of_token, _LOWEST, out=of_token, where=of_token < 0)
                part[:, :width].sort(axis=1)
        return hits.cumsum(0, dtype=np.uint16)


class _AtRandom:
    """The probability that experts are still in a cache that evicts at random.

    Args:
        ranks: ``(R, E)`` of each expert elsewhere, 0 = busiest.
        length: J.
        sizes: ``(S,)`` places, each above K, ascending.
        is_warm: whether experts that were not used are in the cache, too.
    """

    def __init__(self, ranks: Integers, length: int, sizes: Integers, *, is_warm: bool) -> None:
        rows, number = len(ranks), len(sizes)
        # The logarithm of the probability to have survived all tokens so far.
        self._survival = np.zeros((rows, number))
        # What it was after each token; behind rows of experts that were not used, which are missing in the caches of
        # the first 0, 1, … S sizes.
        self._earlier = np.zeros((number + 1 + length * rows, number), np.float32)
        self._earlier[: number + 1][np.tri(number + 1, number, -1, dtype=bool)] = np.inf
        lacking = np.searchsorted(sizes, ranks, side="right") if is_warm else np.full(ranks.shape, number)
        self._last_use = _with_none(lacking, number, np.intp)
        self._capacity = np.tile(sizes, (rows, 1))

    def step(self, position: int, experts: NDArray[np.intp], choices: Integers) -> NDArray[np.float32]:
        """Return how many experts ``(K, r)`` at a position are expected to be found ``(S, r)``, and move on.

        ``choices`` ``(r,)``: experts of each token.
        """
        (rows, number), active = self._survival.shape, experts.shape[1]
        survival, capacity = self._survival[:active], self._capacity[:active]
        then = self._earlier.take(self._last_use.take(experts), axis=0)
        probabilities = np.exp(survival.astype(np.float32) - then).reshape(len(experts), -1)
        # NumPy adds numbers that lie side by side in pairs, which rounds less.
        hits = np.ascontiguousarray(probabilities.T).sum(1).reshape(survival.shape)
        survival += np.log((capacity - choices[:, None]) / (capacity - hits))
        now = np.arange(active) + (number + 1 + position * rows)
        self._earlier[now[0] : now[-1] + 1] = survival
        self._last_use[experts] = now
        self._last_use[-1] = number
        return hits.T
