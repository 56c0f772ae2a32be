"""Cross-validation of recordings: nothing is judged on the requests that it was fitted on.

Axes: n inputs, F folds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from moeprobe.metrics.stats.busiest import NUM_FOLDS
from moeprobe.metrics.stats.statistic import Integers


def folds_of(ids: Sequence[str], clusters: Mapping[str, str]) -> dict[str, int]:
    """Return the fold of each input: independent samples in turn, one cluster together.

    Args:
        ids: the inputs.
        clusters: of the inputs that are no samples by themselves.
    """
    samples = dict.fromkeys(clusters.get(name, name) for name in ids)
    number = {sample: index % NUM_FOLDS for index, sample in enumerate(samples)}
    return {name: number[clusters.get(name, name)] for name in ids}


def without_fold(counts: Integers) -> Integers:
    """Return counts by fold ``(F, ...)``, each of all other folds."""
    outside: Integers = counts.sum(0) - counts
    return outside


def heat_of(counts: Integers) -> Integers:
    """Return the rank of each expert by its counts ``(F, E)``, 0 = most; ties to the lower expert."""
    order = np.argsort(-counts, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(counts.shape[1])[None], 1)
    return ranks
