"""Numbers that a table of ``experts`` does not have: how alike a layer's experts are, and what ranks them by price.

All follow from the sums per image of a run, with intervals over images, the same resamples for every model. So
differences and means of models are paired.

Axes: n images, E experts, P = E (E − 1) / 2 pairs of experts, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.stats import rankdata

from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates
from moeprobe.metrics.stats.of_totals import OfTotals
from moeprobe.metrics.stats.statistic import Array
from moeprobe.runtime.seeds import generator

Sums = Mapping[str, Array]
# What experts are ranked by, and what they ought to be ranked as.
SALIENCY, LOAD, HALVES = "saliency", "load", "other images"
PRICE, SIZE = "price", "size"
DISTANCE, CKA = "distance", "cka"
# Random halves of the images, whose rank correlations are averaged.
_SPLITS = 200


def likeness(sums: Sums, bootstrap: Bootstrap) -> dict[str, Replicates]:
    """Return the mean over pairs of experts: distance over that of permuted patches, and alignment."""
    return {name: _replicate(bootstrap, *parts) for name, parts in _likeness(sums).items()}


def of_images(sums: Sums) -> dict[str, Array]:
    """Return what each image says of the same ``(n,)``, whose mean is the number, up to a few parts in n².

    It is n times the number, less n − 1 times that of the other images.
    """
    found = {}
    for name, (columns, value) in _likeness(sums).items():
        count, total = len(columns), columns.sum(0)
        others = value((total - columns).T)
        found[name] = count * value(total[:, None]) - (count - 1) * others
    return found


def ranks(models: Sequence[Sums], criterion: str, target: str, bootstrap: Bootstrap) -> Replicates:
    """Return Spearman's correlation over the experts of a layer, on average over models.

    Args:
        models: sums of each.
        criterion: what experts are ranked by: ``SALIENCY`` or ``LOAD``, the patches that an expert processes.
        target: ``PRICE``, the rise of the loss without the expert; or ``SIZE``, its mean without the sign.
        bootstrap: gives the resamples.
    """
    parts = [_rank_columns(sums, target) for sums in models]
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]

    def value(totals: Array) -> Array:
        return np.mean([_correlation(part, criterion) for part in np.split(totals, ends)], axis=0)

    return _replicate(bootstrap, np.concatenate(parts, axis=1), value)


def halves(sums: Sums, target: str) -> float:
    """Return Spearman's correlation of a target on one half of the images with it on the other; mean of many splits."""
    effects = _effects(sums, target)
    count = len(effects)
    random = generator(0, "halves of the images")
    first = np.zeros((count, _SPLITS))
    for split in range(_SPLITS):
        first[random.permutation(count)[: count // 2], split] = 1
    return float(_spearman(effects.T @ first, effects.T @ (1 - first)).mean())


def _replicate(bootstrap: Bootstrap, columns: Array, value: Callable[[Array], Array]) -> Replicates:
    [replicates] = bootstrap.replicate([(OfTotals(columns, value), np.ones(len(columns), int))])
    return replicates


def _likeness(sums: Sums) -> dict[str, tuple[Array, Callable[[Array], Array]]]:
    """Return, by number, its columns of each image and the number ``(R,)`` of their totals ``(columns, R)``."""
    return {
        DISTANCE: (_distance_columns(sums), lambda totals: _distances(totals).mean(0)),
        CKA: (_alignment_columns(sums), lambda totals: _alignments(totals).mean(0)),
    }


def _distance_columns(sums: Sums) -> Array:
    """Return twice the mean of squared norms, products, and products with permuted patches ``(n, 3P)``."""
    norms = sums["expert_norms"]
    i, j = np.triu_indices(norms.shape[1], 1)
    products = (sums["expert_products"], sums["expert_products_permuted"])
    return np.concatenate([norms[:, i] + norms[:, j], *products], axis=1)


def _distances(totals: Array) -> Array:
    norms, products, permuted = np.split(totals, 3)
    return (norms - 2 * products) / (norms - 2 * permuted)


def _alignment_columns(sums: Sums) -> Array:
    """Return the alignments of two experts, and of either with itself ``(n, 3P)``."""
    own = sums["expert_self_alignments"]
    i, j = np.triu_indices(own.shape[1], 1)
    return np.concatenate([sums["expert_alignments"], own[:, i], own[:, j]], axis=1)


def _alignments(totals: Array) -> Array:
    joint, first, second = np.split(totals, 3)
    return joint / np.sqrt(first * second)


def _effects(sums: Sums, target: str) -> Array:
    """Return the rise of the loss of each image without each expert ``(n, E)``, of ``SIZE`` without the sign."""
    prices = sums["experts_price_without"]
    return np.abs(prices) if target == SIZE else prices


def _rank_columns(sums: Sums, target: str) -> Array:
    parts = (_effects(sums, target), sums["expert_saliencies"], sums["expert_processed"])
    return np.concatenate(parts, axis=1).astype(float)


def _correlation(totals: Array, criterion: str) -> Array:
    effects, saliencies, processed = np.split(totals, 3)
    # An expert that processes nothing adds nothing.
    mean = np.divide(saliencies, processed, out=np.zeros_like(saliencies), where=processed > 0)
    return _spearman({SALIENCY: mean, LOAD: processed}[criterion], effects)


def _spearman(first: Array, second: Array) -> Array:
    """Return the correlation ``(R,)`` of the ranks of two ``(E, R)``."""
    a, b = (rankdata(values, axis=0) for values in (first, second))
    a, b = a - a.mean(0), b - b.mean(0)
    return (a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0))
