"""What simultaneous intervals exclude: how much worse a checkpoint may be, and whether two are equivalent.

"No significant difference" alone says nothing of how large a difference may be. Wherever that word stands, the largest
loss that the intervals leave possible stands beside it.

Sources: equivalence where an interval lies inside the margins, Schuirmann 1987; the largest loss that an interval does
not exclude, as in trials of non-inferiority, Piaggio et al. 2012.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.planning import images_needed
from moeprobe.results.numbers import decimals_of, end


@dataclass(frozen=True)
class Excluded:
    """What the intervals of one metric exclude, for several comparisons at once.

    A checkpoint is worse by at most 0.02 where the lowest end is −0.02 and more is better:

    >>> from moeprobe.judging.excluded import Excluded
    >>> rows = [{"metric": "accuracy", "value": 0.01, "sim_low": -0.02, "sim_high": 0.04}]
    >>> Excluded.of(rows).text
    'excludes a loss above 0.020'
    >>> Excluded.of(rows).is_equivalent(0.03), Excluded.of(rows).is_equivalent(0.05)
    (False, True)

    Attributes:
        loss: the largest loss that no interval excludes, in the metric's own unit: minus the lowest end where more is
            better, the highest end where less is, the larger of both where neither is. Below 0 where every interval
            names the better side. NaN where no comparison has an interval.
        reach: how far from 0 the intervals reach at most; NaN likewise.
        has_side: whether the metric has a better direction.
        intervals: number of comparisons with an interval.
        comparisons: number of all of them.
        decimals: that the loss is shown with.
    """

    loss: float
    reach: float
    has_side: bool
    intervals: int
    comparisons: int
    decimals: int

    @classmethod
    def of(cls, rows: Sequence[Mapping[Any, Any]]) -> Self:
        """Return what judged differences of one metric exclude; ``rows`` as in ``comparison.csv``."""
        direction = find(rows[0]["metric"]).direction
        judged = [row for row in rows if row["sim_low"] == row["sim_low"]]
        low = min((row["sim_low"] for row in judged), default=np.nan)
        high = max((row["sim_high"] for row in judged), default=np.nan)
        reach = max(-low, high)
        loss = {1: -low, -1: high}.get(direction, reach)
        decimals = max((decimals_of(row) for row in judged), default=3)
        return cls(float(loss), float(reach), bool(direction), len(judged), len(rows), decimals)

    @property
    def text(self) -> str:
        """The bound in words, e.g. ``excludes a loss above 0.031``; empty where there is no interval."""
        if self.loss != self.loss:
            return ""
        what = "loss" if self.has_side else "difference"
        where = "" if self.intervals == self.comparisons else f" in {self.intervals} of {self.comparisons}"
        # Written as the ends of intervals are, so that the two agree to the last digit.
        return f"excludes a {what} above {end(max(self.loss, 0.0), decimals=self.decimals)}{where}"

    def is_equivalent(self, within: float) -> bool:
        """Whether every comparison has an interval, and each of these lies inside ± ``within``."""
        return self.intervals == self.comparisons and self.reach < within


def images_to_equivalence(rows: Sequence[Mapping[Any, Any]], within: float) -> int | None:
    """Return how many images show each of these differences to be inside ± ``within`` in 80 % of experiments.

    This is so if nothing differs (``planning.images_needed``). The largest number of all comparisons counts.
    None where one of them has no standard error.
    """
    return _most_images(rows, partial(images_needed, size=within, both_ends=True, assurance=None))


def images_to_detection(rows: Sequence[Mapping[Any, Any]], difference: float) -> int | None:
    """Return how many images detect a true ``difference`` in each of these comparisons in 80 % of experiments.

    Four of five runs plan enough images (``planning.ASSURANCE``). Otherwise as ``images_to_equivalence``.
    """
    return _most_images(rows, partial(images_needed, size=difference))


def _most_images(rows: Sequence[Mapping[Any, Any]], plan: Callable[..., int]) -> int | None:
    """Return the largest number of images that ``plan`` gives of a comparison; None where one has no error."""
    numbers = []
    for row in rows:
        error, reach = float(row["se"]), float(row["sim_high"] - row["value"])
        # Where no image differs, none of them tells how many would.
        if not error > 0 or reach != reach:
            return None
        numbers.append(plan(int(row["images"]), factor=reach / error, error=error))
    return max(numbers, default=None)
