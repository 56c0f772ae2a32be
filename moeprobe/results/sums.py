"""Sums and counts per image, cell by cell; merging is a disjoint union by image.

A cell is what one line of a table is about: (layer, view, severity, draw, tokens). Nothing is averaged here and
nothing divided, so that shards, batches and interrupted runs add up to the same bytes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.sequences import WINDOW
from moeprobe.metrics.token_kinds import EXPERTS, NO_PAIR

# The version of a run's sums and tables. 1 (or none): metrics of load count first choices; 2: they count all K choices.
FORMAT = 2
# Columns of an image that are no sums: they are the same in all its draws, and in a cluster.
CONSTANT = ("label", EXPERTS, WINDOW)


@dataclass(frozen=True, eq=False)
class Cell:
    """What a set of sums is about; empty where it is about none (an output has no layer, a pair no severity).

    Cells are compared by ``key``, since a missing severity (NaN) does not equal itself.

    ``draw`` is 1, 2, … where there are several random draws; 0 = there are none, or all of them together.
    ``top_k``: the experts that a token chooses, 0 where tokens do not choose.
    """

    layer: str = ""
    router: str = ""
    top_k: int = 0
    view: str = ""
    severity: float = float("nan")
    draw: int = 0
    tokens: str = ""

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Cell) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[object, ...]:
        """Return the fields with None for a missing severity: equal for equal cells, and stable in a table."""
        severity = None if np.isnan(self.severity) else self.severity
        return (self.layer, self.router, self.top_k, self.view, severity, self.draw, self.tokens)

    def site(self) -> tuple[object, ...]:
        """Return what cells of two checkpoints must share to be compared; their routers may differ."""
        return replace(self, router="", top_k=0).key()


@dataclass
class CellSums:
    """The columns of one cell, in chunks as they came."""

    cell: Cell
    image_ids: list[NDArray[np.str_]] = field(default_factory=list)
    columns: list[Mapping[str, NDArray[np.generic]]] = field(default_factory=list)

    def join(self) -> tuple[NDArray[np.str_], dict[str, NDArray[np.generic]]]:
        """Return image names and columns ``(n, ...)`` in the order of the names.

        Raises:
            ValueError: an image occurs twice: shards must be disjoint and are never padded.
        """
        names = np.concatenate(self.image_ids)
        order = np.argsort(names, kind="stable")
        names = names[order]
        if (names[1:] == names[:-1]).any():
            raise ValueError(f"An image was counted twice in {self.cell}.")
        joined = {
            name: np.concatenate([chunk[name] for chunk in self.columns])[order] for name in self.columns[0]
        }
        return names, joined


class Accumulator:
    """All cells of one checkpoint's run."""

    def __init__(self) -> None:
        self._cells: dict[Cell, CellSums] = {}

    def add(self, cell: Cell, image_ids: Iterable[str], columns: Mapping[str, NDArray[np.generic]]) -> None:
        """Add the sums of some images to a cell.

        Raises:
            ValueError: a column has another length than ``image_ids``, or holds neither whole numbers nor float64; or
                the columns differ from the cell's other images.
        """
        names = np.asarray(list(image_ids), dtype=np.str_)
        for name, column in columns.items():
            if len(column) != len(names):
                raise ValueError(f"{name} has {len(column)} rows for {len(names)} images in {cell}.")
            if column.dtype.kind != "i" and column.dtype != np.float64:
                raise ValueError(f"{name} is {column.dtype}, neither whole numbers nor float64, in {cell}.")
        sums = self._cells.setdefault(cell, CellSums(cell))
        if sums.columns and sums.columns[0].keys() != columns.keys():
            odd = ", ".join(sorted(sums.columns[0].keys() ^ columns.keys()))
            raise ValueError(f"Not all images of {cell} have the columns {odd}.")
        sums.image_ids.append(names)
        sums.columns.append(columns)

    def merge(self, accumulator: "Accumulator") -> "Accumulator":
        """Return the union of two disjoint sets of images."""
        merged = Accumulator()
        for source in (self, accumulator):
            for sums in source._cells.values():
                for names, columns in zip(sums.image_ids, sums.columns, strict=True):
                    merged.add(sums.cell, names.tolist(), columns)
        return merged

    def by_cluster(
        self, clusters: Mapping[str, str], *, lists: tuple[str, ...] = (), size: int | None = None
    ) -> "Accumulator":
        """Return the sums of whole clusters, each in place of its members, which are no independent samples.

        Args:
            clusters: the cluster's name by the member's; a name that is absent is a cluster by itself.
            lists: beginnings of the columns that hold an entry per trial (``metrics.base.trial_lists``).
            size: members that a list has places for; None = as many as the largest cluster here has, and one more.
        """
        if not clusters:
            return self
        merged = Accumulator()
        # A list has as many places in every part of a run.
        size = size or max(Counter(clusters.values()).values()) + 1
        for sums in self.cells():
            names, columns = sums.join()
            of_clusters, row = np.unique([clusters.get(name, name) for name in names], return_inverse=True)
            merged.add(
                sums.cell,
                of_clusters.tolist(),
                {
                    name: _join_trials(column, row, size)
                    if name.startswith(lists)
                    else _add_up(name, column, row)
                    for name, column in columns.items()
                },
            )
        return merged

    def cells(self) -> list[CellSums]:
        """Return the cells in the order in which they first came."""
        return list(self._cells.values())


def _add_up(name: str, column: NDArray[np.generic], row: NDArray[np.intp]) -> NDArray[np.generic]:
    """Return the sums over the members of each cluster; ``row``: the cluster of each."""
    totals = np.zeros((row.max() + 1, *column.shape[1:]), column.dtype)
    if name in CONSTANT:
        totals[row] = column
    else:
        np.add.at(totals, row, column)
    return totals


def _join_trials(column: NDArray[np.generic], row: NDArray[np.intp], size: int) -> NDArray[np.generic]:
    """Return the trials of a cluster's members, one member after the other, with places for ``size`` of them."""
    order = np.argsort(row, kind="stable")
    number = np.arange(len(row)) - np.searchsorted(row[order], row[order])
    lists = np.full((row.max() + 1, size, *column.shape[1:]), NO_PAIR, column.dtype)
    lists[row[order], number] = column[order]
    return lists.reshape(len(lists), -1, *column.shape[2:])
