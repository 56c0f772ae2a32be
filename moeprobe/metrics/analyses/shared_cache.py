"""How many of the chosen experts does one cache for all layers find, with as many places as a cache per layer has?

A layer whose choices are hard to foresee can then take places of others. A token looks all its layers up at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.analyses.expert_cache import RULES, SHORT, CacheHits, hit_rates, rules_of
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily

if TYPE_CHECKING:
    from torch import Tensor


def _hit(rule: str) -> Metric:
    return Metric(
        f"shared_cache_hit_{rule}",
        about="share of the chosen experts that are found in one cache for all MoE layers, with C places times their "
        f"number, {RULES[rule]}; C is in the column severity",
        label=f"found in one cache for all layers, {SHORT[rule]}",
        short=SHORT[rule],
        noun=f"hit rate of a cache for all layers ({SHORT[rule]})",
        nulls=("eviction",) if rule == "optimal" else ("eviction", "even"),
        rank=51,
        severity="places",
    )


SHARED_HIT = MetricFamily("shared_cache_hit_{rule}", rf"shared_cache_hit_({'|'.join(RULES)})", _hit, ("lru",))


class SharedCache(ModelAnalysis[CacheHits]):
    """Share of the chosen experts that one cache for all layers finds.

    >>> import torch
    >>> from moeprobe.metrics.analyses.expert_cache import CacheHits
    >>> from moeprobe.metrics.analyses.shared_cache import SharedCache
    >>> from moeprobe.metrics.by_hand import numbers
    >>> hits = torch.tensor([[6.0, 5.0, 4.0, 8.0, 5.0]], dtype=torch.float64)
    >>> even = torch.tensor([2.5], dtype=torch.float64)
    >>> numbers(SharedCache(), CacheHits(hits, torch.tensor([10]), even))["shared_cache_hit_optimal"]
    0.8
    """

    measures = (SHARED_HIT,)
    signature = "shared_choices"

    def sums(self, subject: CacheHits) -> dict[str, Tensor]:
        """Return hits and choices per sequence."""
        return {
            "shared_hits": subject.hits,
            "shared_choices": subject.choices,
            "shared_even": subject.even,
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the hit rate of each rule beside both levels."""
        hits, even = (columns[name].astype(np.float64) for name in ("shared_hits", "shared_even"))
        choices = columns["shared_choices"].astype(np.int64)
        return hit_rates(SHARED_HIT, hits, choices, even, rules=rules_of(columns))
