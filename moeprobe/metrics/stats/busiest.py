"""The share of the choices that the busiest experts of other inputs have.

The inputs are divided into folds; one sampled unit (a video, a document) stays together. The m experts that are
chosen most often outside of a fold are looked for in it. Which experts these are varies with the inputs, too, so a
resample chooses them anew.

Axes: n inputs, L layers, E experts, F folds, R resamples.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moeprobe.metrics.stats.statistic import Array, Integers, divide

NUM_FOLDS = 5
# Loads of experts in resamples that are in memory at a time.
LOADS_AT_ONCE = 2**21


@dataclass(frozen=True)
class BusiestElsewhere:
    """The share of choices whose expert is among the m busiest of its layer in the inputs of other folds.

    Three inputs, each in a fold of its own. The busiest expert of the other two is either (a tie), 1 and 0, and
    2 + 1 + 1 of the 12 choices have it:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.busiest import BusiestElsewhere
    >>> uses = np.array([[[2.0, 2.0]], [[3.0, 1.0]], [[1.0, 3.0]]])
    >>> round(float(BusiestElsewhere(uses, 1).evaluate(np.ones((3, 1)))[0]), 3)
    0.333

    Attributes:
        uses: ``(n, L, E)`` tokens of an input that choose each expert.
        number: m.
        unit: the number of each input's unit ``(n,)``, all of which is in one fold; None = every input is one.
    """

    uses: Array
    number: int
    unit: Integers | None = None

    @property
    def has_others(self) -> bool:
        """Whether there are inputs in other folds, whose busiest experts are looked for."""
        return len(np.unique(self._fold)) > 1

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights; NaN where there are no other inputs."""
        if not self.has_others:
            return np.full(weights.shape[1], np.nan)
        at_once = max(LOADS_AT_ONCE // max(self.uses[0].size, 1), 1) if len(self.uses) else 1
        starts = range(0, weights.shape[1], at_once)
        return np.concatenate([self._evaluate(weights[:, start : start + at_once]) for start in starts])

    def _evaluate(self, weights: Array) -> Array:
        total = np.tensordot(weights, self.uses, (0, 0))
        hits = np.zeros(weights.shape[1])
        for fold in range(NUM_FOLDS):
            rows = self._fold == fold
            inside = np.tensordot(weights[rows], self.uses[rows], (0, 0))
            hits += np.take_along_axis(inside, self._busiest(total - inside), 2).sum((1, 2))
        return divide(hits, total.sum((1, 2)))

    def influence(self) -> Array:
        """Return the derivative by each input's weight, with the busiest experts as they are."""
        hits = np.take_along_axis(self.uses, self._fitted, 2).sum((1, 2))
        choices = self.uses.sum((1, 2))
        share = divide(hits.sum(), choices.sum())
        return divide(hits - share * choices, choices.sum())

    @cached_property
    def _fold(self) -> np.ndarray:
        """``(n,)`` the fold of each input."""
        return (np.arange(len(self.uses)) if self.unit is None else self.unit) % NUM_FOLDS

    @cached_property
    def _fitted(self) -> np.ndarray:
        """``(n, L, m)`` the busiest experts for each input."""
        inside = np.stack([self.uses[self._fold == number].sum(0) for number in range(NUM_FOLDS)])
        return self._busiest(inside.sum(0) - inside)[self._fold]

    def _busiest(self, loads: Array) -> np.ndarray:
        """Return the busiest experts ``(..., m)``; ties to the lower expert."""
        return np.argsort(-loads, axis=-1, kind="stable")[..., : self.number]
