"""Hits of a cache of experts along sequences, under five rules of eviction, for several sizes of the cache at once.

A token looks its experts up together, at most K; then all of them are in the cache. What leaves in their place is never
one of these. At the first token the cache holds the experts that are busiest elsewhere. Rules, all with C places:

* lru: evicts the experts whose last use is longest ago.
* lfu: evicts the experts that the sequence used least often. Uses of evicted experts are remembered.
* static: evicts nothing: the C experts that are busiest elsewhere, always.
* optimal: Bélády's rule, which evicts the experts whose next use is furthest away. No rule has more hits.
* random: evicts at random, in expectation. A cached expert survives a token with probability (C − k) / (C − hits), with
  the token's k experts. Hits are replaced by their mean there (mean field).

Where recency or counts are equal, the expert that is busier elsewhere stays.

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
_NEVER = np.iinfo(np.int32).max
# Tokens, or experts of sequences, that are in memory at a time.
_ENTRIES = 2**20
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
        at_once = max(_ENTRIES // max(length, self.num_experts), 1)
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
        counts = _ByCount(self._ranks, self._length, sizes, is_warm=self._is_warm)
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
    kind = np.int8 if len(is_found) <= np.iinfo(np.int8).max else np.int16
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


class _ByCount:
    """Caches that evict what was used least often.

    An expert's key is how often it was used, then how busy it is elsewhere: that part of it also says which expert it
    is. Only where an expert is missed are the lowest keys of a cache looked for.

    Args:
        ranks: ``(R, E)`` of each expert elsewhere, 0 = busiest.
        length: J.
        sizes: ``(S,)`` places.
        is_warm: whether experts that were not used are in the cache, too.
    """

    def __init__(self, ranks: Integers, length: int, sizes: Integers, *, is_warm: bool) -> None:
        self._number = ranks.shape[1]
        # A power of two above E, so that -1 is the key of no expert.
        self._once = 1 << self._number.bit_length()
        # Keys of a token's own experts are above all others by this much while it is looked up.
        self._above = (length + 2) * self._once
        kind = np.int32 if 2 * self._above < _NEVER else np.int64
        keys = self._number - 1 - ranks
        self._keys = _with_none(keys, -1, kind)
        # By size, the keys of the experts that are cached, and -1 for the others.
        self._caches = [
            (int(size), _with_none(np.where((ranks < size) & is_warm, keys, -1), -1, kind)) for size in sizes
        ]
        # Which expert is so busy, by sequence; other numbers are of none.
        expert_of = np.full((len(ranks), self._once), ranks.size)
        np.put_along_axis(expert_of, keys, np.arange(ranks.size).reshape(ranks.shape), 1)
        self._expert_of = expert_of.ravel()

    def step(self, experts: NDArray[np.intp], choices: Integers) -> NDArray[np.signedinteger[Any]]:
        """Return how many of the experts ``(K, r)`` are found ``(S, r)``, and let them be used.

        ``choices`` ``(r,)``: experts of each token.
        """
        keys = self._keys.take(experts) + self._once
        self._keys[experts] = keys
        above, hits = keys + self._above, []
        for size, cached in self._caches:
            step_hits = _count(cached.take(experts) >= 0)
            hits.append(step_hits)
            cached[experts] = above
            rows = np.flatnonzero(step_hits < choices)
            if len(rows):
                cached[self._lowest(cached, rows, size, len(experts))] = -1
            cached[experts] = keys
            cached[-1] = -1
        return np.stack(hits)

    def _lowest(
        self, cached: NDArray[np.signedinteger[Any]], rows: Integers, size: int, top_k: int
    ) -> NDArray[np.intp]:
        """Return the experts ``(n, K)`` with the lowest keys in some sequences: those above the size of the cache."""
        keys, end = cached[:-1].reshape(-1, self._number).take(rows, axis=0), self._number - size
        keys.sort(axis=1)
        # Where fewer are too many, -1 stands in their place.
        lowest = keys[:, max(end - top_k, 0) : end] & (self._once - 1)
        return self._expert_of.take(lowest + (rows * self._once)[:, None])


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
        self._uses = [np.full((rows, size), _NEVER, np.int32) for size in sizes]
        if by_heat is not None:
            for uses in self._uses:
                uses[:] = by_heat[:, : uses.shape[1]]
        # All but the first 0, 1, … K of a token's choices.
        self._but_first = np.arange(top_k) >= np.arange(top_k + 1)[:, None]
        # Flags of choices in whole words, since their bits are counted much faster than rows of them are summed.
        self._is_hit = np.zeros((rows, -(-top_k // 8) * 8), bool)

    def step(self, position: int, following: NDArray[np.int32]) -> NDArray[np.uint16]:
        """Return how many experts of the tokens at a position are found ``(S, r)``, and move on.

        ``following`` ``(r, K)``: the next uses of these experts, -1 where a choice is missing.
        """
        rows = len(following)
        hits = np.empty((len(self._uses), rows), np.uint16)
        words, is_hit = self._is_hit[:rows].view(np.uint64), self._is_hit[:rows, : self._top_k]
        missing = np.zeros(rows, np.intp)
        of_found = following
        if (following < 0).any():
            missing = np.count_nonzero(following < 0, axis=1)
            # Missing choices first for what is new, which fills the last places; and last for what is found.
            following = np.sort(following, axis=1)
            columns = np.arange(self._top_k) + missing[:, None]
            of_found = np.take_along_axis(following, np.minimum(columns, self._top_k - 1), 1)
        for index, every in enumerate(self._uses):
            uses = every[:rows]
            uses.sort(axis=1)
            # The next uses come first: at most K of them are now.
            soonest, latest = uses[:, : self._top_k], uses[:, -self._top_k :]
            np.equal(soonest, position, out=is_hit)
            np.bitwise_count(words).sum(1, dtype=np.uint16, out=hits[index])
            # What is found is used again later; what is not takes the place of the latest.
            np.copyto(soonest, of_found, where=is_hit)
            np.copyto(latest, following, where=self._but_first.take(hits[index] + missing, axis=0))
        return hits


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
