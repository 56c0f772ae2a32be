"""How many of the chosen experts does a cache of C experts per layer find?

A server that keeps only some experts in fast memory loads the others while a token waits. The rules of eviction are in
``cache_policies``. Two levels stand beside each rule: a cache of the same size that evicts at random, and a router that
draws evenly, of which every rule without foresight finds C / E. The optimal rule has foresight; only the first level is
one for it.

Axes: B sequences, n sequences of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.cache_policies import POLICIES
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.stats.statistic import Ratio, Share

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.stats.statistic import Array, Integers

# The rules that have numbers of their own; random eviction is a level.
RULES = {
    "lru": "that keeps the experts used last",
    "lfu": "that keeps the experts that the request used most often",
    "static": "that always holds the busiest experts of other requests",
    "optimal": "that knows the future (Bélády's rule), which no rule that evicts exceeds",
}
_RANDOM = POLICIES.index("random")
# A column of recordings without other requests: nobody knows the experts that are busiest there.
NO_OTHERS = "cache_no_others"
# What the names of rules are in sentences and figures.
SHORT = {"lru": "LRU", "lfu": "LFU", "static": "static", "optimal": "optimum"}
_NAMES = "|".join(RULES)


def _hit(rule: str) -> Metric:
    return Metric(
        f"cache_hit_{rule}",
        about=f"share of the chosen experts that are found in a cache of C experts per layer {RULES[rule]}; C is in "
        "the column severity",
        label=f"found in a cache, {SHORT[rule]}",
        short=SHORT[rule],
        noun=f"hit rate of a cache ({SHORT[rule]})",
        nulls=("eviction",) if rule == "optimal" else ("eviction", "even"),
        rank=47,
        severity="places",
    )


def _loads(rule: str) -> Metric:
    return Metric(
        f"cache_loads_{rule}",
        about="experts per token that are not found, of all chosen MoE layers together, "
        f"with C places per layer and a cache {RULES[rule]}; C is in the column severity",
        label=f"experts loaded per token, {SHORT[rule]}",
        unit="count",
        rank=48,
        severity="places",
    )


def _bytes(rule: str) -> Metric:
    return Metric(
        f"cache_bytes_{rule}",
        about=f"bytes per token that are loaded: cache_loads_{rule} times the bytes of an expert",
        label=f"bytes loaded per token, {SHORT[rule]}",
        unit="other",
        rank=49,
        severity="places",
    )


def _speed(rule: str) -> Metric:
    return Metric(
        f"cache_speed_{rule}",
        about="tokens per second that loading lets through: the bandwidth divided by the bytes per token; computing "
        "takes no time in it",
        label=f"tokens per second, {SHORT[rule]}",
        unit="other",
        rank=50,
        severity="places",
    )


CACHE_HIT = MetricFamily("cache_hit_{rule}", rf"cache_hit_({_NAMES})", _hit, ("lru",))
CACHE_LOADS = MetricFamily("cache_loads_{rule}", rf"cache_loads_({_NAMES})", _loads, ("lru",))
CACHE_BYTES = MetricFamily("cache_bytes_{rule}", rf"cache_bytes_({_NAMES})", _bytes, ("lru",))
CACHE_SPEED = MetricFamily("cache_speed_{rule}", rf"cache_speed_({_NAMES})", _speed, ("lru",))


@dataclass(frozen=True)
class CacheHits:
    """What caches of one size found.

    Attributes:
        hits: ``(B, P)`` float64, choices that were found by each of ``POLICIES``.
        choices: ``(B,)`` that were looked up.
        even: ``(B,)`` float64, how many are found of an even router.
        tokens: ``(B,)`` of which all layers are looked at; None = of a single layer.
        expert_bytes: ``(B,)`` bytes of an expert, the same for all; None = not known.
        bandwidth: ``(B,)`` bytes per second, likewise.
    """

    hits: Tensor
    choices: Tensor
    even: Tensor
    tokens: Tensor | None = None
    expert_bytes: Tensor | None = None
    bandwidth: Tensor | None = None


class ExpertCache(ModelAnalysis[CacheHits]):
    """Share of the chosen experts that a cache finds, and what the others take to load.

    A request chose 10 experts. LRU found 6, LFU 5, and the busiest ones held 4; 8 could have been found, and random
    eviction would find 5. Then κ of LRU is (0.6 − 0.5) / (1 − 0.5):

    >>> import torch
    >>> from moeprobe.metrics.analyses.expert_cache import CacheHits, ExpertCache
    >>> from moeprobe.metrics.by_hand import numbers
    >>> hits = torch.tensor([[6.0, 5.0, 4.0, 8.0, 5.0]], dtype=torch.float64)
    >>> even = torch.tensor([2.5], dtype=torch.float64)
    >>> value = numbers(ExpertCache(), CacheHits(hits, torch.tensor([10]), even))
    >>> [value[f"cache_hit_lru{name}"] for name in ("", "_chance eviction", "_kappa eviction", "_chance even")]
    [0.6, 0.5, 0.2, 0.25]
    """

    measures = (CACHE_HIT, CACHE_LOADS, CACHE_BYTES, CACHE_SPEED)
    signature = "cache_choices"

    def sums(self, subject: CacheHits) -> dict[str, Tensor]:
        """Return hits and choices per sequence, of all layers together also tokens, bytes and seconds."""
        columns = {
            "cache_hits": subject.hits,
            "cache_choices": subject.choices,
            "cache_even": subject.even,
        }
        if subject.tokens is None:
            return columns
        columns["cache_tokens"] = subject.tokens
        if subject.expert_bytes is not None:
            loaded = (subject.choices[:, None] - subject.hits) * subject.expert_bytes[:, None]
            columns["cache_bytes"] = loaded
            if subject.bandwidth is not None:
                columns["cache_seconds"] = loaded / subject.bandwidth[:, None]
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the hit rate of each rule beside both levels, then what is loaded per token."""
        hits, choices = columns["cache_hits"].astype(np.float64), columns["cache_choices"].astype(np.int64)
        even = columns["cache_even"].astype(np.float64)
        estimators = hit_rates(CACHE_HIT, hits, choices, even, rules=rules_of(columns))
        if "cache_tokens" not in columns:
            return estimators
        tokens = columns["cache_tokens"]
        for index, rule in rules_of(columns):
            estimators.append(CACHE_LOADS.make(rule).mean_of(choices - hits[:, index], tokens))
            if "cache_bytes" in columns:
                estimators.append(CACHE_BYTES.make(rule).mean_of(columns["cache_bytes"][:, index], tokens))
            if "cache_seconds" in columns:
                seconds = columns["cache_seconds"][:, index].astype(np.float64)
                estimators.append(
                    CACHE_SPEED.make(rule).raw(Ratio(tokens.astype(np.float64), seconds), tokens)
                )
        return estimators


def rules_of(columns: Columns) -> list[tuple[int, str]]:
    """Return the rules with their places in ``POLICIES``: the busiest experts of other requests where there are any."""
    return [(index, rule) for index, rule in enumerate(RULES) if rule != "static" or NO_OTHERS not in columns]


def hit_rates(
    family: MetricFamily, hits: Array, choices: Integers, even: Array, *, rules: Sequence[tuple[int, str]]
) -> list[Estimator]:
    """Return the share of choices ``(n,)`` that each rule found, beside random eviction and an even router.

    ``hits`` ``(n, P)``; ``even`` ``(n,)``: what is found of an even router; ``rules`` as of ``rules_of``.
    """
    trials = choices.astype(np.float64)
    levels = {"eviction": Share(hits[:, _RANDOM], trials), "even": Share(even, trials)}
    estimators = []
    for index, rule in rules:
        metric, hit_share = family.make(rule), Share(hits[:, index], trials)
        estimators.append(metric.raw(hit_share, choices))
        for null in metric.nulls:
            estimators += metric.chance_and_kappa(null, levels[null], hit_share, choices)
    return estimators
