"""Counts of choices as one table, whatever form their file has: rows of window, layer, expert and count.

A window is a span of counting: a step, an iteration, a pass, or the whole file. It becomes an input of a trace.

Axes: n rows, W windows, L layers, E experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture

# Under which a response holds a table.
TABLE = "count_table"
# Layers and experts are numbers of 15 bits, as in a trace's columns.
_BITS = 15
_MOST_NUMBER = 2**_BITS
# The largest count that a float64 holds exactly: some files write counts as floats.
_MOST_COUNT = 2**53
# Rows that wait to be sorted, or as many as are sorted; rows of a table; numbers of all windows (a gigabyte).
_PENDING, _MOST_ROWS, _MOST_CELLS = 2**19, 2**26, 2**27


@dataclass(frozen=True)
class CountTable:
    """How often experts were chosen.

    Attributes:
        form: the layout of the file: "choices" (a line each), "counts", "imatrix".
        windows: their names, in the order of the file; empty for one without a name.
        window: ``(n,)`` index into ``windows``; rows are sorted by it, by layer and by expert, and none comes twice.
        layer: ``(n,)``.
        expert: ``(n,)``.
        count: ``(n,)`` from 0 up.
    """

    form: str
    windows: tuple[str, ...]
    window: NDArray[np.int64]
    layer: NDArray[np.int64]
    expert: NDArray[np.int64]
    count: NDArray[np.int64]

    def layers_of_windows(self) -> set[tuple[str, int]]:
        """Return the windows and layers that have rows."""
        pairs = np.unique(self.window * _MOST_NUMBER + self.layer)
        return {(self.windows[pair // _MOST_NUMBER], int(pair % _MOST_NUMBER)) for pair in pairs}


class TableBuilder:
    """Collects the rows of a table.

    Args:
        adds: whether rows of one window, layer and expert are added up; else a second one is a fault.
    """

    def __init__(self, *, adds: bool) -> None:
        self._adds = adds
        # By step and rank.
        self._windows: dict[tuple[str, str], int] = {}
        self._keys: list[NDArray[np.int64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._pending = 0

    def window(self, step: str = "", rank: str = "") -> int:
        """Return the number of a window, a new one for a step and rank that are new."""
        return self._windows.setdefault((step, rank), len(self._windows))

    def add(
        self,
        window: int | NDArray[np.int64],
        layer: int | NDArray[np.int64],
        expert: NDArray[np.int64],
        count: NDArray[np.generic],
    ) -> None:
        """Add rows ``(n,)``; a window or a layer may be one for all of them.

        Raises:
            Fault: counts are no whole numbers, layers or experts are out of range, or rows come twice.
        """
        for number in (np.asarray(layer), expert):
            if number.size and (number.min() < 0 or number.max() >= _MOST_NUMBER):
                raise Fault(f"it has a layer or an expert beyond 0 to {_MOST_NUMBER - 1:,}")
        keys = np.broadcast_to((np.asarray(window) << 2 * _BITS) + (np.asarray(layer) << _BITS), expert.shape)
        self._keys.append(keys + expert)
        self._counts.append(whole_numbers(count))
        self._pending += len(expert)
        if self._pending > max(_PENDING, len(self._keys[0])):
            self._compact()

    def _compact(self) -> None:
        """Sort the rows; add up rows with the same key, or refuse them."""
        if not self._keys:
            return
        keys, counts = np.concatenate(self._keys), np.concatenate(self._counts)
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.diff(keys, prepend=-1) != 0
        if not self._adds and not first.all():
            twice = int(keys[np.argmin(first)])
            step, rank = list(self._windows)[twice >> 2 * _BITS]
            where = "".join(f", {what} {name}" for what, name in (("window", step), ("rank", rank)) if name)
            raise Fault(
                f"layer {(twice >> _BITS) % _MOST_NUMBER} and expert {twice % _MOST_NUMBER}{where} have two counts; "
                "keep one, or tell them apart by step"
            )
        self._keys = [keys[first]]
        self._counts = [np.add.reduceat(counts, np.flatnonzero(first)) if len(counts) else counts]
        self._pending = 0
        if len(self._keys[0]) > _MOST_ROWS:
            raise Fault(f"it has more than {_MOST_ROWS:,} counts; split it")

    def table(self, form: str) -> CountTable:
        """Return the table. Ranks of one step are added up; without steps each rank is a window.

        Raises:
            Fault: there are no rows, or rows come twice.
        """
        self._compact()
        if not self._keys or not len(self._keys[0]):
            raise Fault("it holds no counts")
        by_step = any(step for step, _ in self._windows)
        names = [step if by_step else f"rank{rank}" if rank else "" for step, rank in self._windows]
        windows = tuple(dict.fromkeys(names))
        if len(windows) < len(names):
            index_of = {name: index for index, name in enumerate(windows)}
            number = np.array([index_of[name] for name in names], np.int64)
            [keys] = self._keys
            self._keys = [(number[keys >> 2 * _BITS] << 2 * _BITS) + keys % (1 << 2 * _BITS)]
            self._adds = True
            self._compact()
        [keys], [counts] = self._keys, self._counts
        layer, expert = (keys >> _BITS) % _MOST_NUMBER, keys % _MOST_NUMBER
        return CountTable(form, windows, keys >> 2 * _BITS, layer, expert, counts)


def whole_numbers(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return counts as whole numbers.

    Raises:
        Fault: they are none, below 0, or too large to be exact.
    """
    if values.dtype.kind not in "iuf":
        raise Fault("counts take whole numbers")
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all() or (numbers != np.round(numbers)).any():
        raise Fault("counts take whole numbers")
    if (numbers < 0).any() or (numbers > _MOST_COUNT).any():
        raise Fault(f"counts take whole numbers from 0 to {_MOST_COUNT:,}")
    return values.astype(np.int64)


def concat_tables(tables: Sequence[CountTable], shifts: Sequence[int]) -> CountTable:
    """Return one table of several, window by window.

    Args:
        tables: at least one.
        shifts: added to the expert numbers of each.
    """
    builder = TableBuilder(adds=True)
    for table, shift in zip(tables, shifts, strict=True):
        numbers = np.array([builder.window(name) for name in table.windows], np.int64)
        builder.add(numbers[table.window], table.layer, table.expert + shift, table.count)
    return builder.table(tables[0].form)


def captures_of(table: CountTable, shape: MoeShape, *, left_out: int = 0) -> list[Capture]:
    """Return the counts of each window; a window without any choice has none.

    Layers are numbered among all hidden layers, or among those with experts.

    Args:
        table: of one file, or of several that were added.
        shape: the MoE layers of the model.
        left_out: lines of multi-token prediction that are not in the table.

    Raises:
        Fault: the table does not fit the model.
    """
    if (highest := int(table.expert.max())) >= shape.num_experts:
        raise Fault(
            f"expert {highest} is none of the {shape.num_experts} experts of the model: known as physical ids of "
            "replicated experts, or another model's config.json"
        )
    rows = shape.num_layers
    if _numbers_sparse(table, shape):
        rows = len(shape.sparse)
    elif (highest := int(table.layer.max())) >= rows:
        cause = shape.mtp_cause(highest + 1)
        raise Fault(
            f"layer {highest} is none of the {rows} layers of the model" + (f": {cause}" if cause else "")
        )
    if len(table.windows) * rows * shape.num_experts > _MOST_CELLS:
        raise Fault(
            f"it has {len(table.windows):,} windows of {rows} layers and {shape.num_experts} experts, more than "
            f"{_MOST_CELLS:,} numbers; split it"
        )
    ends = np.searchsorted(table.window, np.arange(len(table.windows) + 1))
    captures = []
    for name, begin, end in zip(table.windows, ends[:-1], ends[1:], strict=True):
        counts = np.zeros((rows, shape.num_experts), np.int64)
        counts[table.layer[begin:end], table.expert[begin:end]] = table.count[begin:end]
        captures.append(
            Capture(None, window=name, counts=counts if counts.any() else None, left_out=left_out)
        )
        left_out = 0
    return captures


def _numbers_sparse(table: CountTable, shape: MoeShape) -> bool:
    """Whether layers are numbered among those with experts."""
    for layers in (np.unique(table.layer), np.unique(table.layer[table.count > 0])):
        listed = tuple(layers.tolist())
        if listed in (shape.sparse, tuple(range(shape.num_layers))):
            return False
        if listed == tuple(range(len(shape.sparse))):
            return True
    return False
