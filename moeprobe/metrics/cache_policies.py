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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers

POLICIES = ("lru", "lfu", "static", "optimal", "random")
# What is found at each step, by sequence and size: in expectation, it is no whole number.
Hits = NDArray[np.float32]
_NEVER = np.iinfo(np.int32).max
# Tokens, or experts of sequences, that are in memory at a time.
_ENTRIES = 2**20


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

    def hits(self, sizes: Sequence[int]) -> dict[str, Hits]:
        """Return for each rule how many experts of each token are found ``(R, J, S)``, float32; 0 where it is absent.

        Args:
            sizes: numbers of cached experts C, each above K and at most E.
        """
        rows, length = self.present.shape
        hits: dict[str, Hits] = {
            policy: np.zeros((rows, length, len(sizes)), np.float32) for policy in POLICIES
        }
        # Long sequences first, so that those in use are always the first ones.
        order = np.argsort(-self.present.sum(1), kind="stable")
        at_once = max(_ENTRIES // max(length, self.num_experts), 1)
        for start in range(0, rows, at_once):
            part = order[start : start + at_once]
            for policy, step_hits in self._simulate(part, np.asarray(sizes)).items():
                hits[policy][part] = step_hits
        return hits

    def _simulate(self, part: Integers, sizes: Integers) -> dict[str, Hits]:
        """Return the hits ``(r, J, S)`` of some sequences, the longest first."""
        present = self.present[part]
        # Absent tokens move to the end: a cache stays as it is while they pass.
        order = np.argsort(~present, axis=1, kind="stable")
        lengths = present.sum(1)
        order = order[:, : int(lengths.max(initial=0))]
        experts = np.take_along_axis(self.experts[part], order[..., None], 1)
        heat = None if self.heat is None else self.heat[part]
        steps = _Steps(experts, lengths, heat, self.num_experts)
        hits: dict[str, Hits] = {}
        for policy, step_hits in steps.hits(sizes).items():
            hits[policy] = np.zeros((len(part), present.shape[1], len(sizes)), np.float32)
            np.put_along_axis(hits[policy], order[..., None], step_hits.transpose(2, 0, 1), 1)
        return hits


class _Steps:
    """The lookups of sequences without gaps, the longest first, position by position.

    Tables by sequence and expert are flat, and experts are indices into them. Each sequence has one index more, at
    which nothing is ever found.

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
        self._num_experts, self._is_warm = num_experts, heat is not None
        self._active = np.searchsorted(-lengths, -np.arange(self._length), side="left")
        by_step = experts.transpose(1, 2, 0).astype(np.int32)
        by_step[by_step < 0] = num_experts
        # ``(J, R)`` experts of each token.
        self._choices = np.count_nonzero(by_step < num_experts, axis=1)
        # ``(J, K, R)`` places in the tables.
        self._expert_index = by_step + (np.arange(self._rows, dtype=np.int32) * (num_experts + 1))
        if heat is None:
            heat = np.broadcast_to(np.arange(num_experts), (self._rows, num_experts))
        self._ranks = np.full((self._rows, num_experts + 1), num_experts, np.int32)
        self._ranks[:, :-1] = heat

    def hits(self, sizes: Integers) -> dict[str, Hits]:
        """Return the hits ``(J, S, R)`` of each rule."""
        shape = self._length, len(sizes), self._rows
        hits: dict[str, Hits] = {policy: np.zeros(shape, np.float32) for policy in POLICIES}
        following, first = self._next_uses()
        recency = _ByRecency(self._ranks, self._length, sizes, is_warm=self._is_warm)
        counts = _ByCount(self._ranks, self._length, sizes, is_warm=self._is_warm)
        by_heat = np.take_along_axis(first, np.argsort(self._ranks, axis=1), 1) if self._is_warm else None
        optimal = _Optimal(self._rows, self._top_k, sizes, by_heat)
        at_random = _AtRandom(self._rows, self._length, sizes)
        ranks = self._ranks.ravel()
        for step, active in enumerate(self._active.tolist()):
            expert_index = self._expert_index[step, :, :active]
            warm = (ranks[expert_index][:, None] < sizes[:, None]) & self._is_warm
            last = recency.number_of(expert_index) - 1
            of_step = {
                "lru": recency.contains(expert_index).sum(0, dtype=np.int16),
                "lfu": counts.step(expert_index),
                "static": warm.sum(0, dtype=np.int16),
                "optimal": optimal.step(step, following[step, :active]),
                "random": at_random.step(step, last, warm, self._choices[step, :active]),
            }
            for policy, step_hits in of_step.items():
                hits[policy][step, :, :active] = step_hits
            recency.set(expert_index, step + 1)
        return hits

    def _next_uses(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return when the expert of each choice is used next ``(J, R, K)``, and when each is first used ``(R, E + 1)``.

        ``_NEVER`` where it is not, and -1 for a choice that is missing.
        """
        following = np.empty((self._length, self._rows, self._top_k), np.int32)
        uses = np.full((self._rows, self._num_experts + 1), _NEVER, np.int32)
        uses[:, -1] = -1
        table = uses.ravel()
        for step in range(self._length - 1, -1, -1):
            expert_index = self._expert_index[step, :, : self._active[step]]
            following[step, : self._active[step]] = table[expert_index].T
            table[expert_index] = step
            uses[:, -1] = -1
        return following, uses


class _ByRecency:
    """The experts that were used last: one order of them has the caches of all sizes.

    An expert's key is the step of its last use times E, plus how busy it is elsewhere, so that no two are equal.

    Args:
        ranks: ``(R, E + 1)`` of each expert elsewhere, 0 = busiest.
        length: J.
        sizes: ``(S,)`` places.
        is_warm: whether experts that were not used are in the cache, too.
    """

    def __init__(self, ranks: NDArray[np.int32], length: int, sizes: Integers, *, is_warm: bool) -> None:
        self._number = ranks.shape[1] - 1
        self._keys = _first_keys(ranks, length)
        self._tie = self._keys.ravel().copy()
        self._table = self._keys.ravel()
        self._lowest_of = self._number - sizes
        self._floor = 0 if is_warm else self._number

    def number_of(self, experts: NDArray[np.int32]) -> Integers:
        """Return the step of the last use of some experts, from 1 on; 0 = they were not used."""
        return np.asarray(np.maximum(self._table[experts], 0) // self._number, dtype=np.int64)

    def contains(self, experts: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which experts ``(K, r)`` of the first r sequences are in each cache ``(K, S, r)``."""
        keys = self._keys[: experts.shape[1], :-1].copy()
        keys.sort(axis=1)
        lowest = np.maximum(keys[:, self._lowest_of].T, self._floor)
        step_hits: NDArray[np.bool_] = self._table[experts][:, None] >= lowest
        return step_hits

    def set(self, experts: NDArray[np.int32], step: int) -> None:
        """Let experts be used at a step, from 1 on."""
        self._table[experts] = self._tie[experts] + step * self._number
        self._keys[:, -1] = -1


class _ByCount:
    """Caches that evict what was used least often; arguments as of ``_ByRecency``, with counts for steps."""

    def __init__(self, ranks: NDArray[np.int32], length: int, sizes: Integers, *, is_warm: bool) -> None:
        self._number = ranks.shape[1] - 1
        keys = _first_keys(ranks, length)
        self._table = keys.ravel()
        self._sizes = sizes.tolist()
        # By size, the keys of the experts that are cached, and -1 for the others.
        self._cached = [np.where((ranks < size) & is_warm, keys, -1) for size in sizes]
        # Keys of a token's own experts are above all others by this much while it is looked up.
        self._above = np.iinfo(keys.dtype).max // 2
        self._sign = np.iinfo(keys.dtype).bits - 1

    def step(self, experts: NDArray[np.int32]) -> Integers:
        """Return how many of the experts ``(K, r)`` are found ``(S, r)``, and let them be used."""
        rows = experts.shape[1]
        self._table[experts] += self._number
        keys = self._table[experts]
        hits = np.empty((len(self._cached), rows), np.int64)
        for index, every in enumerate(self._cached):
            table, cached = every.ravel(), every[:rows]
            hits[index] = (table[experts] >= 0).sum(0, dtype=np.int16)
            size = self._sizes[index]
            table[experts] = keys + self._above
            # Sorting 128 numbers is much faster than sorting 129, so without the place of none.
            lowest = np.sort(cached[:, :-1], axis=1)[:, -size]
            # The sign of the difference is -1 where a key is lower: then all bits are set, which is -1, too.
            cached |= (cached - lowest[:, None]) >> self._sign
            table[experts] = keys
            cached[:, -1] = -1
        return hits


def _first_keys(ranks: NDArray[np.int32], length: int) -> NDArray[np.signedinteger[Any]]:
    """Return the keys ``(R, E + 1)`` of experts that were not used: how busy they are elsewhere; -1 of none."""
    number = ranks.shape[1] - 1
    # Twice as large keys must fit.
    kind = np.int32 if 2 * (length + 2) * number < _NEVER else np.int64
    return np.asarray(number - 1 - ranks, dtype=kind)


class _Optimal:
    """The next uses of what is in the cache: Bélády's rule needs no more, and not which experts they are of.

    Args:
        rows: R.
        top_k: K.
        sizes: ``(S,)`` places.
        by_heat: ``(R, E + 1)`` first uses, those of experts that are busy elsewhere first; None = caches begin empty.
    """

    def __init__(self, rows: int, top_k: int, sizes: Integers, by_heat: NDArray[np.int32] | None) -> None:
        self._top_k = top_k
        self._uses = [np.full((rows, size), _NEVER, np.int32) for size in sizes]
        if by_heat is not None:
            for uses in self._uses:
                uses[:] = by_heat[:, : uses.shape[1]]

    def step(self, position: int, following: NDArray[np.int32]) -> Integers:
        """Return how many experts of the tokens at a position are found ``(S, r)``, and move on.

        ``following`` ``(r, K)``: the next uses of these experts, -1 where a choice is missing.
        """
        hits = np.empty((len(self._uses), len(following)), np.int64)
        columns = np.arange(self._top_k)
        missing = np.count_nonzero(following < 0, axis=1)[:, None]
        of_found = following
        if missing.any():
            # Missing choices first for what is new, which fills the last places; and last for what is found.
            following = np.sort(following, axis=1)
            of_found = np.take_along_axis(following, np.minimum(columns + missing, self._top_k - 1), 1)
        for index, every in enumerate(self._uses):
            uses = every[: len(following)]
            uses.sort(axis=1)
            # The next uses come first: at most K of them are now.
            soonest, latest = uses[:, : self._top_k], uses[:, -self._top_k :]
            is_hit = soonest == position
            hits[index] = is_hit.sum(1, dtype=np.int16)
            # What is found is used again later; what is not takes the place of the latest.
            np.copyto(soonest, of_found, where=is_hit)
            np.copyto(latest, following, where=columns >= hits[index][:, None] + missing)
        return hits


class _AtRandom:
    """The probability that experts are still in a cache that evicts at random.

    Args:
        rows: R.
        longest: J.
        sizes: ``(S,)`` places, each above K.
    """

    def __init__(self, rows: int, longest: int, sizes: Integers) -> None:
        # By position, the logarithm of the probability to have survived all tokens before it.
        self._survival = np.zeros((longest + 1, len(sizes), rows))
        self._table = self._survival.ravel()
        self._sizes = sizes[:, None]

    def step(self, position: int, last: Integers, is_warm: NDArray[np.bool_], choices: Integers) -> Array:
        """Return the expected hits ``(S, r)`` of tokens whose experts were last used at ``(K, r)``, and move on.

        ``is_warm`` ``(K, S, r)``: which are in the cache at first. ``choices`` ``(r,)``: experts of each token.
        """
        active = last.shape[1]
        now = self._survival[position, :, :active]
        _, sizes, rows = self._survival.shape
        index = (last + 1)[:, None] * (sizes * rows) + np.arange(sizes)[:, None] * rows + np.arange(active)
        since = np.subtract(now, self._table[index], dtype=np.float32, casting="same_kind")
        hits: Array = (np.exp(since) * ((last >= 0)[:, None] | is_warm)).sum(0)
        factor = (self._sizes - choices) / (self._sizes - hits)
        self._survival[position + 1, :, :active] = now + np.log(factor)
        return hits
