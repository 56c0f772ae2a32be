"""Do the differences of two routings grow from layer to layer?

Later layers read what earlier ones gave: rounding adds up, and other experts give other outputs. A model whose
differences do not grow gets them in each layer's own router.

Axes: L layers, B inputs, J tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.analyses.touched import Differences
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Contrast

if TYPE_CHECKING:
    from torch import Tensor

DIFFER_GROWTH = Metric(
    "differ_growth",
    about="share of the pairs of token and layer that differ in the later half of the layers minus that in the earlier "
    "half; of an odd number of layers the middle one is in neither",
    label="growth of differences, later − earlier layers",
    short="growth",
)


class LayerGrowth(ModelAnalysis[Differences]):
    """How many more tokens differ in the later layers than in the earlier ones.

    Of four tokens, one differs in the first of three layers and three in the last: 3/4 − 1/4. The second layer is in
    neither half:

    >>> import torch
    >>> from moeprobe.metrics.analyses.layer_growth import LayerGrowth
    >>> from moeprobe.metrics.analyses.touched import Differences
    >>> from moeprobe.metrics.by_hand import numbers
    >>> differs = torch.tensor([[[1, 0, 0, 0]], [[1, 1, 1, 1]], [[1, 1, 1, 0]]], dtype=torch.bool)
    >>> numbers(LayerGrowth(), Differences(differs, torch.ones(1, 4, dtype=torch.bool)))
    {'differ_growth': 0.5}
    """

    measures = (DIFFER_GROWTH,)
    signature = "growth_trials"

    def sums(self, subject: Differences) -> dict[str, Tensor]:
        """Return how many tokens of each input differ in either half, and of how many."""
        differs = subject.differs & subject.trial
        half = len(differs) // 2
        return {
            "growth_earlier": differs[:half].sum((0, 2)),
            "growth_later": differs[len(differs) - half :].sum((0, 2)),
            "growth_trials": half * subject.trial.sum(1),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the difference of the two shares; none of a single layer."""
        trials = columns["growth_trials"]
        if not trials.any():
            return []
        earlier, later = (columns[f"growth_{half}"].astype(np.float64) for half in ("earlier", "later"))
        return [DIFFER_GROWTH.raw(Contrast(later - earlier, trials.astype(np.float64), 1.0), trials)]
