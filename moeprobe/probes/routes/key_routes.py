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

from moeprobe.metrics.stats.statistic import Array, Integers
from moeprobe.probes.routes.tables import Tables, expert_sums
from moeprobe.results.stored_cell import StoredCell
from moeprobe.runtime.seeds import generator

PERMUTATIONS = 1000
# Labels, and entries of tables, that are held at a time.
NUMBERS_AT_ONCE = 2**23


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
    routes: Integers
    shares: Array
    images: int
    distinct: int
    largest: int
    permuted: Integers
    distances: Array
    superclasses: Sequence[int] | None = None

    @property
    def groups(self) -> Integers:
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
    has_images = np.logical_and.reduce([layer_table.by_class.tokens.sum(-1) > 0 for layer_table in tables])
    if has_images.sum() < 2:
        return None
    shares = [layer_table.by_class.shares[has_images] for layer_table in tables]
    routes = np.stack([share.argmax(-1) for share in shares], axis=1)
    distinct, largest = (int(number[0]) for number in _count_routes(routes[None]))
    return KeyRoutes(
        checkpoint=tables[0].checkpoint,
        layers=[layer_table.layer for layer_table in tables],
        names=[name for name, present in zip(names, has_images, strict=True) if present],
        routes=routes,
        shares=np.stack([share.max(-1) for share in shares], axis=1),
        images=int(tables[0].by_class.images.sum()),
        distinct=distinct,
        largest=largest,
        permuted=np.concatenate(list(_count_permuted_routes(cells, len(names), has_images, seed=seed))),
        distances=np.mean([_distances(share) for share in shares], axis=0),
        superclasses=None if superclasses is None else np.asarray(superclasses)[has_images].tolist(),
    )


def _count_permuted_routes(
    cells: Sequence[StoredCell], num_classes: int, has_images: NDArray[np.bool_], *, seed: int
) -> Iterator[Integers]:
    """Yield the two numbers ``(d, 2)`` of some permutations at a time: all layers get the same ones."""
    num_images = cells[0].num_images
    experts = max(expert_sums(columns).shape[1] for cell in cells for columns in [next(cell.blocks())[1]])
    step = max(
        1, min(PERMUTATIONS, NUMBERS_AT_ONCE // num_images, NUMBERS_AT_ONCE // (num_classes * experts))
    )
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
        routes = [_by_class(cell, permuted, num_classes)[:, has_images].argmax(-1) for cell in cells]
        yield np.stack(_count_routes(np.stack(routes, axis=-1)), axis=1)


def _labels(cell: StoredCell) -> Integers:
    return np.concatenate([columns["label"] for _, columns in cell.blocks()]).astype(np.int64)


def _by_class(cell: StoredCell, labels: Integers, num_classes: int) -> Array:
    """Return the tokens of each class by expert ``(d, C, E)`` under labels ``(d, n)``."""
    all_routes: Array | None = None
    draw = np.arange(len(labels))[:, None] * num_classes
    for rows, columns in cell.blocks():
        sums = expert_sums(columns)
        block_labels = labels[:, rows]
        key = np.where(block_labels >= 0, draw + block_labels, len(labels) * num_classes).ravel()
        size = len(labels) * num_classes + 1
        parts = [
            np.bincount(key, weights=np.tile(expert_sum, len(labels)), minlength=size)[:-1]
            for expert_sum in sums.T
        ]
        part = np.stack(parts, axis=-1).astype(np.float64)
        all_routes = part if all_routes is None else all_routes + part
    assert all_routes is not None
    return all_routes.reshape(len(labels), num_classes, -1)


def _count_routes(routes: Integers) -> tuple[Integers, Integers]:
    """Return how many routes of ``(d, C, L)`` differ, and how many classes share the most common one, ``(d,)``."""
    same = (routes[:, :, None] == routes[:, None]).all(-1) if routes.shape[1] <= 64 else None
    if same is not None:
        # A route is counted at its first class.
        first = ~np.tril(same, -1).any(-1)
        return first.sum(-1), same.sum(-1).max(-1)
    all_routes = [np.unique(layer_table, axis=0, return_counts=True)[1] for layer_table in routes]
    return np.array([len(count) for count in all_routes]), np.array([count.max() for count in all_routes])


def _distances(shares: Array) -> Array:
    """Return the Jensen-Shannon distance (base 2) of each two rows of ``(C, E)``: the root of the divergence."""
    entropy = _entropy(shares)
    mixed = np.stack([_entropy((shares + layer_table) / 2) for layer_table in shares])
    divergence = mixed - (entropy[:, None] + entropy) / 2
    # What is left of two equal rows is rounding.
    return np.sqrt(np.where(divergence < 1e-12, 0.0, divergence).clip(max=1.0))


def _entropy(shares: Array) -> Array:
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(-1)


def route_table(all_routes: Sequence[KeyRoutes]) -> pd.DataFrame:
    """Return a row per checkpoint, class and layer: the expert of its route, its share, and the route's number."""
    rows = [
        {
            "checkpoint": layer_table.checkpoint,
            "class": name,
            "layer": layer,
            "expert": int(layer_table.routes[row, column]),
            "share": float(layer_table.shares[row, column]),
            "route": int(layer_table.groups[row]),
            "classes": int((layer_table.groups == layer_table.groups[row]).sum()),
        }
        for layer_table in all_routes
        for row, name in enumerate(layer_table.names)
        for column, layer in enumerate(layer_table.layers)
    ]
    return pd.DataFrame(rows, columns=["checkpoint", "class", "layer", "expert", "share", "route", "classes"])


def distance_table(all_routes: Sequence[KeyRoutes]) -> pd.DataFrame:
    """Return a row per checkpoint and two classes: the distance of their experts, mean over layers."""
    rows = [
        {
            "checkpoint": layer_table.checkpoint,
            "class": layer_table.names[i],
            "class_b": layer_table.names[j],
            "value": layer_table.distances[i, j],
        }
        for layer_table in all_routes
        for i, j in np.argwhere(np.triu(np.ones_like(layer_table.distances), 1)).tolist()
    ]
    return pd.DataFrame(rows, columns=["checkpoint", "class", "class_b", "value"])


# Whether classes share a key route where they share a superclass, as CIFAR-100's do.
#
# Adjusted mutual information (Vinh, Epps and Bailey 2010) of two partitions of the classes: 1 where they
# are the same, 0 on average by chance. Its distribution by chance is that under permutations of the
# superclasses over the classes: those of the images' labels would ask instead whether routes depend on the
# class at all.


def superclass_information(
    routes: NDArray[np.int64], superclasses: Sequence[int] | None, *, seed: int
) -> tuple[float, Array] | None:
    """Return the information, and that under permutations ``(D,)``; None where no two classes could share a group.

    Args:
        routes: the number of each class' route ``(C,)``.
        superclasses: the number of each class' superclass ``(C,)``; None = there are none.
        seed: of the permutations.
    """
    if superclasses is None or not 1 < len(set(superclasses)) < len(superclasses):
        return None
    from sklearn.metrics import adjusted_mutual_info_score

    groups = np.asarray(superclasses)
    draws = [generator(seed, "permutation of superclasses", draw=draw) for draw in range(PERMUTATIONS)]
    permuted = [adjusted_mutual_info_score(draw.permutation(groups), routes) for draw in draws]
    return float(adjusted_mutual_info_score(groups, routes)), np.array(permuted)
