"""How a chance level follows from the trials of each stratum, the pairs to draw from, and how alike those pairs are.

c = Σ_s (N_s / P_s) Q_s / Σ_s N_s, with N_s the trials of stratum s, P_s its pairs of trials of two images, and Q_s how
alike the tokens of these pairs are. Strata without such a pair take no part. Axes: s strata.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moeprobe.metrics.stats.statistic import Array, divide


@dataclass(frozen=True)
class Draws:
    """What can be drawn.

    Attributes:
        trials: N_s ``(s,)``.
        own_pairs: pairs of trials of one image ``(s,)``, which are not drawn.
    """

    trials: Array
    own_pairs: Array

    @cached_property
    def pairs(self) -> Array:
        """P_s."""
        return self.trials**2 - self.own_pairs

    @cached_property
    def share(self) -> Array:
        """N_s / P_s; 0 where there is no pair."""
        return divide(self.trials, self.pairs, empty=0.0)

    @cached_property
    def used(self) -> float:
        """Trials in strata with a pair."""
        return float(self.trials[self.share > 0].sum())

    def level(self, alike: Array) -> float:
        """Return c, given Q_s."""
        # Rounding may leave a collapsed router a hair above one.
        return float(np.clip(divide((self.share * alike).sum(), self.used), 0.0, 1.0))

    def slopes(self, alike: Array) -> tuple[Array, Array]:
        """Return the derivatives of c · Σ N by a trial and by a pair of trials of one image, given Q_s."""
        rate = divide(alike, self.pairs, empty=0.0)
        in_all = np.nan_to_num(self.level(alike)) * (self.share > 0)
        return (1 - 2 * self.share * self.trials) * rate - in_all, self.share * rate
