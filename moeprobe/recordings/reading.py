"""Read a routing trace (see ``format``), a block of inputs at a time; it may be in several files (see ``parts``).

A trace may come from anybody: whatever does not hold together is one sentence.

Axes: n inputs of a block, T tokens (the most that one of them has), P of them after the prefix, K choices, E experts.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings import checks
from moeprobe.recordings.format import COLUMNS, SCALARS, as_set, is_ordered, is_sorted
from moeprobe.recordings.parts import TraceParts
from moeprobe.recordings.trace_index import TraceIndex
from moeprobe.runtime.files import resolve

# Bytes of row groups that stay in memory. Where rows come input by input, all layers of some inputs are among them.
CACHE = 2**25
# Bytes of a choice and of a gate in memory.
_CHOICE_BYTES, _GATE_BYTES = 2, 4
# What rows are read for; what else they say is the same for all rows of a layer.
_READ_COLUMNS = {"num_tokens", "view_first", *(name for name in COLUMNS if name not in SCALARS)}


@dataclass(frozen=True)
class Layer:
    """What is the same in all rows of a layer; names as in ``format.COLUMNS``."""

    router: str
    num_experts: int
    top_k: int
    num_prefix_tokens: int
    grid_rows: int | None
    grid_columns: int | None
    patch_size: int | None
    gates_sum_to_one: bool
    token_local: bool
    experts_choose: bool
    gates_kept: str
    ordered_by: str | None
    # Whether no token is known, but how often each expert was chosen.
    load_only: bool = False

    @property
    def ordered(self) -> bool:
        """Whether it is known which of a token's experts came first."""
        return is_ordered(top_k=self.top_k, ordered_by=self.ordered_by)


@dataclass(frozen=True)
class Block:
    """One layer of some inputs, checked, every list filled up to the same number of tokens.

    Attributes:
        layer: what holds for all of them.
        num_tokens: ``(n,)`` how many tokens each has; the rest is padding.
        experts: ``(n, T, K)``, -1 = none; where they are a set, the lowest first.
        processed: ``(n, T, K)``.
        valid: ``(n, T)``, False for padding.
        generated: ``(n, T)`` int8, 1 = generated, 0 = of the prompt, -1 = not known; None where it is of no token.
        kinds: ``(n, T)`` int8, numbers of ``TOKEN_KINDS``, -1 = not known; None as ``generated``.
        token_ids: ``(n, T)`` tokens in the vocabulary, -1 = not known; None as ``generated``.
        gates: ``(n, T, K)`` of the chosen experts; None where they are not recorded, as the next ones.
        highest: ``(n, T)``; so are ``second`` and ``rest``.
        all_gates: ``(n, T, E)``.
        slot: ``(n, T)``.
        partner: ``(n, P)``, and ``view_first`` ``(n,)``: which patches correspond.
    """

    layer: Layer
    num_tokens: NDArray[np.int64]
    experts: NDArray[np.int16]
    processed: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    generated: NDArray[np.int8] | None = None
    kinds: NDArray[np.int8] | None = None
    token_ids: NDArray[np.int32] | None = None
    gates: NDArray[np.float32] | None = None
    highest: NDArray[np.float32] | None = None
    second: NDArray[np.float32] | None = None
    rest: NDArray[np.float32] | None = None
    all_gates: NDArray[np.float32] | None = None
    slot: NDArray[np.int32] | None = None
    partner: NDArray[np.int32] | None = None
    view_first: NDArray[np.bool_] | None = None


class TraceFile:
    """An open trace.

    Args:
        path: the file, the folder of its parts, or a pattern of them, e.g. ``traces/*.parquet``.

    Attributes:
        parts: its files.
        about: its metadata.
        ids: the inputs, in the order of the files.
        layers: what holds for each layer, in forward order.

    Raises:
        UserError: it is missing, truncated, no trace, of a version that is not known, or does not hold together; or
            parts do not fit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = TraceParts(path)
        self.about = self.parts.about
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._bytes = 0
        self._filled: dict[tuple[str, str], bool] = {}
        self._index = TraceIndex(self.parts)
        # In the order of the files, each id once.
        self.ids: list[str] = list(self._index.number_of)
        self._number_of = self._index.number_of
        self.layers = {name: self._layer(name) for name in self.about["layers"]}

    def _layer(self, name: str) -> Layer:
        num_tokens = self._index.num_tokens[name]
        values: dict[str, Any] = {
            column: None if value is None else kind(value)
            for column, kind in checks.OF_LAYER.items()
            for value in [self._index.layers[name][column]]
        }
        layer = Layer(**values, load_only=not num_tokens.any())
        checks.layer(self.path, name, vars(layer), num_tokens)
        return layer

    def rename_inputs(self, names: Mapping[str, str], *, clusters: Mapping[str, str]) -> "TraceFile":
        """Return this trace with other names of its inputs, and without those that get none.

        Args:
            names: new names by the present ones.
            clusters: of the renamed inputs; see ``about``.
        """
        # A shallow copy: the file and its index are shared, and only names differ.
        renamed = copy.copy(self)
        renamed.ids = [names[name] for name in self.ids if name in names]
        renamed._number_of = {
            names[name]: number for name, number in self._number_of.items() if name in names
        }
        renamed.about = self.about | {"clusters": dict(clusters)}
        # A cache of its own: the count of its bytes would go out of step with a shared one.
        renamed._cache, renamed._bytes = OrderedDict(), 0
        return renamed

    @property
    def unsuffixed_path(self) -> Path:
        """The path with its links followed and without ``.parquet``: its end tells traces of one name apart."""
        path = resolve(self.path)
        # A folder of parts may be called v1.5, which ends in no suffix.
        return path.with_suffix("") if path.suffix == ".parquet" else path

    @property
    def num_rows(self) -> int:
        """Rows of all files: inputs times layers."""
        return int(self.parts.starts[-1])

    def marks(self, column: str) -> bool:
        """Whether a column that may be empty says something of any token."""
        return any(values.null_count < len(values) for values in self._parts_of(column))

    def token_kinds(self) -> set[int]:
        """Return the kinds that any token is of, as numbers of ``TOKEN_KINDS``."""
        numbers: set[int] = set()
        for values in self._parts_of("kinds"):
            numbers.update(
                np.unique(values.combine_chunks().flatten().to_numpy(zero_copy_only=False)).tolist()
            )
        return numbers - {-1}

    def _parts_of(self, column: str) -> Iterator[pa.ChunkedArray]:
        """Yield the values of a column, one row group at a time; nothing where an earlier version lacks it."""
        if column in self.parts.columns:
            for group in range(len(self.parts.starts) - 1):
                yield self.parts.row_group(group, [column])[column]

    def fitting(self, num_tokens: int) -> int:
        """Return how many inputs of so many tokens stay in memory while layer after layer of them is read.

        All layers of an input lie together, so all are read, whatever is asked for.
        """
        of_token = 0
        for layer in self.layers.values():
            has_gates = layer.gates_kept not in ("none", "summary")
            of_token += layer.top_k * (_CHOICE_BYTES + _GATE_BYTES * has_gates)
            of_token += layer.num_experts * _GATE_BYTES * (layer.gates_kept == "all")
        # Half of the place, since the first and the last group hold others, too.
        return max(CACHE // 2 // max(of_token * num_tokens, 1), 1)

    def row_groups(self) -> Iterator[pa.Table]:
        """Yield the rows as they are in the file, some at a time, unchecked."""
        for group in range(len(self.parts.starts) - 1):
            yield self.parts.row_group(group)

    def num_tokens(self, layer: str, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the tokens ``(n,)`` that a layer has of these inputs."""
        return self._index.num_tokens[layer][self._indices(ids)]

    def _indices(self, ids: Iterable[str]) -> NDArray[np.int64]:
        return np.fromiter(map(self._number_of.__getitem__, ids), dtype=np.int64)

    def read(self, layer: str, ids: Sequence[str], *, num_tokens: int | None = None) -> Block:
        """Return one layer of these inputs, in this order, filled up to ``num_tokens``.

        Raises:
            UserError: the rows are damaged, or their lists do not fit.
        """
        info = self.layers[layer]
        table = self._take(self._index.rows[layer][self._indices(ids)])
        tokens = table["num_tokens"].to_numpy().astype(np.int64)
        # Blocks of several inputs are padded to the longest.
        length = int(tokens.max()) if num_tokens is None else num_tokens
        prefix, top_k, experts = info.num_prefix_tokens, info.top_k, info.num_experts
        filled = {
            "experts": (0, top_k, -1), "processed": (0, top_k, False), "valid": (0, 0, False),
            "gates": (0, top_k, 0), "highest": (0, 0, 0), "second": (0, 0, 0), "rest": (0, 0, 0),
            "all_gates": (0, experts, 0), "slot": (0, 0, 0), "partner": (prefix, 0, -1),
        }  # fmt: skip
        arrays: dict[str, Any] = {}
        for name, (without, width, fill) in filled.items():
            column = self._full_column(layer, name, table)
            if column is not None:
                arrays[name] = self._pad_column(
                    layer, name, column, tokens - without, length - without, width, fill
                )
        first = self._full_column(layer, "view_first", table)
        if first is not None:
            arrays["view_first"] = first.to_numpy(zero_copy_only=False)
        for name in ("generated", "kinds", "token_ids"):
            arrays[name] = self._where_known(layer, name, table, tokens, length)
        # Sets are sorted, so that two recordings of the same set are equal element by element; most are written so.
        if not info.ordered and not is_sorted(arrays["experts"]):
            order = as_set(arrays["experts"])
            for name in ("experts", "processed", "gates"):
                if name in arrays:
                    arrays[name] = np.take_along_axis(arrays[name], order, axis=-1)
        block = Block(info, tokens, **arrays)
        checks.block(f"{self.path}, {layer}", vars(info), vars(block), ids)
        return block

    def counts(self, layer: str, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return how often each expert was chosen ``(n, E)``, of a layer of which no more is known.

        Raises:
            UserError: that is not in the file, or no number of choices.
        """
        rows = self._take(self._index.rows[layer][self._indices(ids)])
        return checks.counts(f"{self.path}, {layer}", rows, num_experts=self.layers[layer].num_experts)

    def _take(self, rows: NDArray[np.int64]) -> pa.Table:
        """Return rows by their numbers."""
        groups = np.searchsorted(self.parts.starts, rows, side="right") - 1
        # Stable, so that rows of one group are taken together and in order.
        order = np.argsort(groups, kind="stable")
        ends = np.flatnonzero(np.diff(groups[order], append=-1)) + 1
        parts = [
            _rows_of(self._group(int(groups[part[0]])), rows[part] - self.parts.starts[groups[part[0]]])
            for part in np.split(order, ends[:-1])
        ]
        table = pa.concat_tables(parts)
        # Rows were taken group by group; back into the order that was asked for.
        if (np.diff(order) != 1).any():
            table = table.take(pa.array(np.argsort(order)))
        return table.combine_chunks()

    def _group(self, group: int) -> pa.Table:
        """Return what rows of a group are read for; the groups that were used last are kept."""
        if group not in self._cache:
            table = self.parts.row_group(
                group, [name for name in COLUMNS if name in _READ_COLUMNS & self.parts.columns]
            )
            self._cache[group] = table
            self._bytes += table.nbytes
        self._cache.move_to_end(group)
        # The newest group stays, however large it is.
        while self._bytes > CACHE and len(self._cache) > 1:
            self._bytes -= self._cache.popitem(last=False)[1].nbytes
        return self._cache[group]

    def _full_column(self, layer: str, name: str, table: pa.Table) -> pa.Array | None:
        """Return a column that all rows of a layer have; None for one that none has."""
        column = table[name].chunk(0)
        filled = column.null_count == 0
        if (column.null_count not in (0, len(column))) or self._filled.setdefault(
            (layer, name), filled
        ) != filled:
            raise UserError(
                f"{self.path}: some rows of {layer} have {name} and some have none; record it again."
            )
        return column if filled else None

    def _where_known(
        self, layer: str, name: str, table: pa.Table, tokens: NDArray[np.int64], width: int
    ) -> NDArray[np.generic] | None:
        """Return a column that only some rows may have, as ``(n, most)``, -1 elsewhere; None where no row has it."""
        present = name in self.parts.columns and table[name].is_valid().to_numpy()
        if not np.any(present):
            return None
        # Rows without the list are left out here, and filled with -1 below.
        column = table[name].drop_null().combine_chunks()
        values = self._pad_column(layer, name, column, tokens[present], width, 0, False)
        kind = np.int32 if values.dtype == np.int32 else np.int8
        within = np.arange(width) < tokens[present][:, None]
        filled = np.full((len(tokens), width), -1, kind)
        filled[present] = np.where(within, values, -1)
        return filled

    def _pad_column(
        self,
        layer: str,
        name: str,
        column: pa.ListArray,
        tokens: NDArray[np.int64],
        num_tokens: int,
        width: int,
        fill: float,
    ) -> NDArray[np.generic]:
        """Return lists as ``(n, most, width)``, or ``(n, most)`` for width 0 of those that hold one value a token."""
        # All columns but these hold one value per token.
        is_scalar = name not in ("experts", "processed", "gates", "all_gates")
        size = tokens * (1 if is_scalar else width)
        lengths = column.value_lengths().to_numpy()
        values = column.flatten()
        if (lengths != size).any() or values.null_count:
            row = int(np.argmax(lengths != size))
            raise UserError(
                f"{self.path}: {name} of {layer} holds {lengths[row]} values, expected {size[row]}; "
                "record it again."
            )
        shape = (len(tokens), num_tokens) if is_scalar else (len(tokens), num_tokens, width)
        padded = np.full(shape, fill, dtype=values.type.to_pandas_dtype())
        padded[np.arange(num_tokens) < tokens[:, None]] = values.to_numpy(zero_copy_only=False).reshape(
            tokens.sum(), *shape[2:]
        )
        return padded


def _rows_of(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    # Rows beside one another are a slice, which copies nothing but keeps the whole group: it must be most of that.
    if 2 * len(rows) > table.num_rows and (np.diff(rows) == 1).all():
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))
