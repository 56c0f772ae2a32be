"""Where a rising curve reaches a level: the size of a cache that finds 90 % of the choices, for example.

Axes: n images, R resamples, G points of the curve.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.load import NOT_MEASURABLE
from moeprobe.metrics.stats.statistic import Array, Totals, divide


@dataclass(frozen=True)
class LevelOfCurve:
    """The place at which a curve of shares reaches a level, on straight lines between its points.

    The curve begins with 0 at place 0. Where it stays below the level there is no place. With ``is_bounded``, nothing
    is known of places before the first point, so there is none where that one is at the level already.

    A cache of 2 places finds 1 of 4 choices, one of 4 places 3 of 4. Half is found with 3:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.curve import LevelOfCurve
    >>> curve = LevelOfCurve(np.array([2.0, 4.0]), np.array([[1.0, 3.0]]), np.array([4.0]), level=0.5)
    >>> curve.evaluate(np.ones((1, 1))).tolist()
    [3.0]

    Attributes:
        positions: ``(G,)``, ascending.
        hits: ``(n, G)`` of each image at each place.
        trials: ``(n,)``.
        level: the share that is looked for.
        is_bounded: whether the first point is the first place.
        undefined: the flag where there is no place.
    """

    positions: Array
    hits: Array
    trials: Array
    level: float
    is_bounded: bool = False
    undefined: str = NOT_MEASURABLE

    def evaluate(self, weights: Array) -> Array:
        """Return the place under each set of weights; NaN where there is none."""
        return self._read(divide(self.hits.T @ weights, self.trials @ weights))

    def totals(self) -> Totals:
        """Return the sums of hits and trials."""
        return self.hits.sum(0), np.array([self.trials.sum()])

    def value(self, totals: Totals) -> float:
        """Return the place for the sums of all images."""
        hits, trials = totals
        return float(self._read(divide(hits, trials)[:, None])[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the place by each image's weight, on the line that reaches the level."""
        hits, trials = self.totals() if totals is None else totals
        curve = divide(hits, trials)
        above = np.flatnonzero(curve >= self.level)
        if not len(above) or (self.is_bounded and above[0] == 0):
            return np.full(len(self.trials), np.nan)
        end = int(above[0])
        share_influence = divide(self.hits - curve * self.trials[:, None], trials)
        low, high = (curve[end - 1] if end else 0.0), curve[end]
        width = self.positions[end] - (self.positions[end - 1] if end else 0.0)
        # The place is x0 + width · (level − low) / (high − low).
        of_low = share_influence[:, end - 1] * (self.level - high) if end else 0.0
        influence: Array = width * (of_low - share_influence[:, end] * (self.level - low)) / (high - low) ** 2
        return influence

    def _read(self, curve: Array) -> Array:
        """Return the place for shares ``(G, R)``."""
        start = np.zeros((1, curve.shape[1]))
        shares, positions = np.concatenate([start, curve]), np.concatenate([[0.0], self.positions])
        reached = shares >= self.level
        end = reached.argmax(0)
        column = np.arange(curve.shape[1])
        before = np.maximum(end - 1, 0)
        low, high = shares[before, column], shares[end, column]
        part = divide(self.level - low, high - low)
        position: Array = positions[before] + part * (positions[end] - positions[before])
        has_place = reached.any(0) & ~(self.is_bounded & (end <= 1))
        return np.where(has_place, position, np.nan)
