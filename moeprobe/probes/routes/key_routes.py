"""Key routes of classes: the expert that most tokens of a class have, layer by layer; and which classes share one.

The route of class c is (argmax_e p(e | l, c))_l; of equal shares the lower expert. How many routes there are, and how
many classes share the most common one, says nothing by itself: with few experts chance alone makes classes share a
route, and with few images it tells them apart. Beside either number stands its distribution under permutations of the
images' labels. A number of distinct things has no useful interval over images: resamples repeat images, and so make
routes differ that do not.

Source: Teo, section 4.2.2, where the key route of a class is shown and not defined; the definition is ours. Axes: D
permutations, n images, C classes, L layers, E experts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array
from moeprobe.probes.routes.tables import Tables, expert_sums
from moeprobe.results.stored_cell import StoredCell
from moeprobe.runtime.seeds import generator

Whole = NDArray[np.int64]

PERMUTATIONS = 1000
# Labels, and entries of tables, that are held at a time.
_HELD = 2**23


@dataclass(frozen=True)
class KeyRoutes:
    """The routes of a checkpoint's classes.

    Attributes:
        checkpoint: its name.
        layers: L names, of those that have an expert for each class.
        names: of the classes that have images.
        routes: ``(C, L)``.
        shares: ``(C, L)``, which share of the class' tokens the expert of its route has.
        images: labeled images.
        distinct: how many routes differ.
        largest: how many classes share the most common route.
        permuted: ``(D, 2)``, the same two numbers under permutations of the labels.
        distances: ``(C, C)``, Jensen-Shannon distances of the classes' experts, mean over layers.
        superclasses: of the classes that have images ``(C,)``; None where the data set groups none.
    """

    checkpoint: str
    layers: Sequence[str]
    names: Sequence[str]
    routes: Whole
    shares: Array
    images: int
    distinct: int
    largest: int
    permuted: Whole
    distances: Array
    superclasses: Sequence[int] | None = None

    @property
    def groups(self) -> Whole:
        """The number of each class' route ``(C,)``, from 1 for the most common one; ties by the first class."""
        _, first, number, count = np.unique(
            self.routes, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        rank = np.empty(len(count), dtype=np.int64)
        rank[np.lexsort((first, -count))] = np.arange(1, len(count) + 1)
        return rank[number.reshape(-1)]


def key_routes(
    cells: Sequence[StoredCell],
    tables: Sequence[Tables],
    *,
    names: Sequence[str],
    seed: int,
    superclasses: Sequence[int] | None = None,
) -> KeyRoutes | None:
    """Return the routes of the classes of one checkpoint; None where fewer than two classes have images.

    Args:
        cells: one per layer.
        tables: what they come to.
        names: of all classes.
        seed: of the permutations.
        superclasses: of all classes; None = there are none.
    """
    kept = np.logical_and.reduce([one.by_class.tokens.sum(-1) > 0 for one in tables])
    if kept.sum() < 2:
        return None
    shares = [one.by_class.shares[kept] for one in tables]
    routes = np.stack([share.argmax(-1) for share in shares], axis=1)
    distinct, largest = (int(number[0]) for number in _counted(routes[None]))
    return KeyRoutes(
        checkpoint=tables[0].checkpoint,
        layers=[one.layer for one in tables],
        names=[name for name, there in zip(names, kept, strict=True) if there],
        routes=routes,
        shares=np.stack([share.max(-1) for share in shares], axis=1),
        images=int(tables[0].by_class.images.sum()),
        distinct=distinct,
        largest=largest,
        permuted=np.concatenate(list(_permuted(cells, len(names), kept, seed=seed))),
        distances=np.mean([_distances(share) for share in shares], axis=0),
        superclasses=None if superclasses is None else np.asarray(superclasses)[kept].tolist(),
    )


def _permuted(
    cells: Sequence[StoredCell], num_classes: int, kept: NDArray[np.bool_], *, seed: int
) -> Iterator[Whole]:
    """Yield the two numbers ``(d, 2)`` of some permutations at a time: all layers get the same ones."""
    num_images = cells[0].num_images
    experts = max(expert_sums(columns).shape[1] for cell in cells for columns in [next(cell.blocks())[1]])
    step = max(1, min(PERMUTATIONS, _HELD // num_images, _HELD // (num_classes * experts)))
    labels, names = _labels(cells[0]), cells[0].names()
    labeled = np.flatnonzero(labels >= 0)
    # In the order of the names, so that no cut of the images changes a permutation.
    labeled = labeled[np.argsort(np.asarray(names, dtype=object)[labeled], kind="stable")]
    for start in range(0, PERMUTATIONS, step):
        draws = range(start, min(start + step, PERMUTATIONS))
        permuted = np.tile(labels, (len(draws), 1))
        for row, draw in enumerate(draws):
            order = generator(seed, "permutation of labels", draw=draw).permutation(len(labeled))
            permuted[row, labeled] = labels[labeled][order]
        routes = [_by_class(cell, permuted, num_classes)[:, kept].argmax(-1) for cell in cells]
        yield np.stack(_counted(np.stack(routes, axis=-1)), axis=1)


def _labels(cell: StoredCell) -> Whole:
    return np.concatenate([columns["label"] for _, columns in cell.blocks()]).astype(np.int64)


def _by_class(cell: StoredCell, labels: Whole, num_classes: int) -> Array:
    """Return the tokens of each class by expert ``(d, C, E)`` under labels ``(d, n)``."""
    found: Array | None = None
    draw = np.arange(len(labels))[:, None] * num_classes
    for rows, columns in cell.blocks():
        sums = expert_sums(columns)
        here = labels[:, rows]
        key = np.where(here >= 0, draw + here, len(labels) * num_classes).ravel()
        size = len(labels) * num_classes + 1
        parts = [np.bincount(key, weights=np.tile(own, len(labels)), minlength=size)[:-1] for own in sums.T]
        part = np.stack(parts, axis=-1).astype(np.float64)
        found = part if found is None else found + part
    assert found is not None
    return found.reshape(len(labels), num_classes, -1)


def _counted(routes: Whole) -> tuple[Whole, Whole]:
    """Return how many routes of ``(d, C, L)`` differ, and how many classes share the most common one, ``(d,)``."""
    same = (routes[:, :, None] == routes[:, None]).all(-1) if routes.shape[1] <= 64 else None
    if same is not None:
        # A route is counted at its first class.
        first = ~np.tril(same, -1).any(-1)
        return first.sum(-1), same.sum(-1).max(-1)
    found = [np.unique(one, axis=0, return_counts=True)[1] for one in routes]
    return np.array([len(count) for count in found]), np.array([count.max() for count in found])


def _distances(shares: Array) -> Array:
    """Return the Jensen-Shannon distance (base 2) of each two rows of ``(C, E)``: the root of the divergence."""
    entropy = _entropy(shares)
    mixed = np.stack([_entropy((shares + one) / 2) for one in shares])
    divergence = mixed - (entropy[:, None] + entropy) / 2
    # What is left of two equal rows is rounding.
    return np.sqrt(np.where(divergence < 1e-12, 0.0, divergence).clip(max=1.0))


def _entropy(shares: Array) -> Array:
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(-1)


def route_table(found: Sequence[KeyRoutes]) -> pd.DataFrame:
    """Return a row per checkpoint, class and layer: the expert of its route, its share, and the route's number."""
    rows = [
        {
            "checkpoint": one.checkpoint,
            "class": name,
            "layer": layer,
            "expert": int(one.routes[row, column]),
            "share": float(one.shares[row, column]),
            "route": int(one.groups[row]),
            "classes": int((one.groups == one.groups[row]).sum()),
        }
        for one in found
        for row, name in enumerate(one.names)
        for column, layer in enumerate(one.layers)
    ]
    return pd.DataFrame(rows, columns=["checkpoint", "class", "layer", "expert", "share", "route", "classes"])


def distance_table(found: Sequence[KeyRoutes]) -> pd.DataFrame:
    """Return a row per checkpoint and two classes: the distance of their experts, mean over layers."""
    rows = [
        {
            "checkpoint": one.checkpoint,
            "class": one.names[i],
            "class_b": one.names[j],
            "value": one.distances[i, j],
        }
        for one in found
        for i, j in np.argwhere(np.triu(np.ones_like(one.distances), 1)).tolist()
    ]
    return pd.DataFrame(rows, columns=["checkpoint", "class", "class_b", "value"])


def summed(values: Whole | Array, observed: float, *, fewer: bool) -> tuple[float, float, float, float]:
    """Return mean, 2.5 % and 97.5 % quantile of permuted numbers ``(D,)``, and the one-sided p of the observed one.

    ``fewer``: whether p asks for numbers as small as the observed one, and not as large. The observed one counts as a
    permutation (Phipson and Smyth 2010).
    """
    low, high = np.quantile(values, [0.025, 0.975], method="inverted_cdf")
    as_far = values <= observed if fewer else values >= observed
    return float(values.mean()), float(low), float(high), float((1 + as_far.sum()) / (1 + len(values)))
