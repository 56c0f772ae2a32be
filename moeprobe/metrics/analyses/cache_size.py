"""How many experts per layer must a cache hold to find 90 % of the choices?

Axes: B sequences, S sizes, P rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.analyses.expert_cache import RULES, SHORT, rules_of
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.stats.curve import LevelOfCurve

if TYPE_CHECKING:
    from torch import Tensor

LEVEL = 0.9
# The flag where the smallest cache is large enough.
AT_SMALLEST = "at_smallest"


def _size(rule: str) -> Metric:
    return Metric(
        f"cache_size_90_{rule}",
        about=f"places per layer with which a cache {RULES[rule]} finds {100 * LEVEL:g} % of the chosen experts; on "
        "straight lines between the simulated sizes, and empty where the smallest of them finds as many",
        label=f"places that find {100 * LEVEL:g} %, {SHORT[rule]}",
        noun=f"places per layer that find {100 * LEVEL:g} % of the choices ({SHORT[rule]})",
        unit="count",
        rank=52,
    )


CACHE_SIZE = MetricFamily("cache_size_90_{rule}", rf"cache_size_90_({'|'.join(RULES)})", _size, ("lru",))


@dataclass(frozen=True)
class HitCurve:
    """What caches of several sizes found.

    Attributes:
        hits: ``(B, S, P)`` float64, choices that were found by each of ``POLICIES``.
        choices: ``(B,)`` that were looked up.
        sizes: ``(B, S)``, ascending, the same for all.
    """

    hits: Tensor
    choices: Tensor
    sizes: Tensor


class CacheSize(ModelAnalysis[HitCurve]):
    """Places that a cache needs per layer.

    8 of 10 choices are found with 4 places, and all with 8. So 90 % are found with 6:

    >>> import torch
    >>> from moeprobe.metrics.analyses.cache_size import CacheSize, HitCurve
    >>> from moeprobe.metrics.by_hand import numbers
    >>> hits = torch.tensor([8.0, 10.0], dtype=torch.float64)[None, :, None].expand(1, 2, 5)
    >>> numbers(CacheSize(), HitCurve(hits, torch.tensor([10]), torch.tensor([[4, 8]])))["cache_size_90_lru"]
    6.0
    """

    measures = (CACHE_SIZE,)
    signature = "curve_choices"

    def sums(self, subject: HitCurve) -> dict[str, Tensor]:
        """Return hits by size, and choices; sizes times choices, since columns are added up."""
        return {
            "curve_hits": subject.hits.flatten(1),
            "curve_choices": subject.choices,
            "curve_sizes": subject.sizes * subject.choices[:, None],
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the size for each rule."""
        choices, sizes = columns["curve_choices"], columns["curve_sizes"].astype(np.float64)
        mean_sizes = sizes.sum(0) / max(int(choices.sum()), 1)
        hits = columns["curve_hits"].astype(np.float64).reshape(len(choices), len(mean_sizes), -1)
        return [
            CACHE_SIZE.make(rule).raw(
                LevelOfCurve(
                    mean_sizes,
                    hits[:, :, index],
                    choices.astype(np.float64),
                    LEVEL,
                    is_bounded=True,
                    undefined=AT_SMALLEST,
                ),
                choices,
            )
            for index, rule in rules_of(columns)
        ]
