"""Read a routing trace (see ``format``), a block of inputs at a time.

A trace may come from anybody: whatever does not hold together is one sentence.

Axes: n inputs of a block, T tokens (the most that one of them has), P of them after the prefix, K choices, E experts.
"""

import copy
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings import checks
from moeprobe.recordings.file_kinds import HEAD, check_trace_kind
from moeprobe.recordings.format import (
    COLUMNS,
    FORMAT,
    KEY,
    LACKING,
    READ,
    SCALARS,
    SCHEMA,
    VERSION,
    as_set,
    is_ordered,
)
from moeprobe.runtime.files import check_regular, is_folder, open_regular, status
from moeprobe.runtime.parquet import check_parquet_size
from moeprobe.runtime.similar_paths import did_you_mean_path

# Bytes of row groups that stay in memory. Where rows come input by input, all layers of some inputs are among them.
CACHE = 2**26
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
        path: the file.

    Attributes:
        about: its metadata.
        ids: the inputs, in the order of the file.
        layers: what holds for each layer, in forward order.

    Raises:
        UserError: it is missing, truncated, no trace, of a version that is not known, or does not hold together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_file(path)
        self.about = metadata_of(path, self._file.schema_arrow)
        # Before anything is read: a small file may claim billions of rows.
        check_parquet_size(path, self._file.metadata, all_rows=True)
        self._columns = set(self._file.schema_arrow.names)
        groups = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._bytes = 0
        self._filled: dict[tuple[str, str], bool] = {}
        try:
            index = self._file.read(columns=[name for name in SCALARS if name in self._columns]).to_pandas()
        except UNREADABLE as error:
            raise checks.damage_error(path) from error
        # The columns of all rows except their lists: enough to check the file and to find rows.
        if "ordered_by" not in index:  # version 1: gates say in which order
            index["ordered_by"] = index["gates_kept"].map(lambda kept: None if kept == "none" else "gates")
        checks.rows(path, index, layers=self.about["layers"])
        # In the order of the file, each id once.
        self.ids: list[str] = list(dict.fromkeys(index["id"]))
        by_layer = dict(tuple(index.groupby("layer", sort=False)))
        self.layers = {name: self._layer(name, by_layer[name]) for name in self.about["layers"]}
        self._index_of = {name: index for index, name in enumerate(self.ids)}
        self._rows, self._num_tokens = {}, {}
        for name, of_layer in by_layer.items():
            indices = self._indices(of_layer["id"])
            self._rows[name], self._num_tokens[name] = np.empty((2, len(indices)), dtype=np.int64)
            self._rows[name][indices], self._num_tokens[name][indices] = (
                of_layer.index,
                of_layer["num_tokens"],
            )

    def _layer(self, name: str, rows: pd.DataFrame) -> Layer:
        first = rows.iloc[0]
        values: dict[str, Any] = {
            column: None if pd.isna(first[column]) else kind(first[column])
            for column, kind in checks.OF_LAYER.items()
        }
        num_tokens = rows["num_tokens"].to_numpy()
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
        renamed._index_of = {names[name]: index for name, index in self._index_of.items() if name in names}
        renamed.about = self.about | {"clusters": dict(clusters)}
        # A cache of its own: the count of its bytes would go out of step with a shared one.
        renamed._cache, renamed._bytes = OrderedDict(), 0
        return renamed

    @property
    def num_rows(self) -> int:
        """Rows of the file: inputs times layers."""
        return int(self._starts[-1])

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
        if column in self._columns:
            for group in range(len(self._starts) - 1):
                yield self._row_group(group, [column])[column]

    def row_groups(self) -> Iterator[pa.Table]:
        """Yield the rows as they are in the file, some at a time, unchecked."""
        for group in range(len(self._starts) - 1):
            yield self._row_group(group)

    def num_tokens(self, layer: str, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the tokens ``(n,)`` that a layer has of these inputs."""
        return self._num_tokens[layer][self._indices(ids)]

    def _indices(self, ids: Iterable[str]) -> NDArray[np.int64]:
        return np.array([self._index_of[identity] for identity in ids], dtype=np.int64)

    def read(self, layer: str, ids: Sequence[str], *, num_tokens: int | None = None) -> Block:
        """Return one layer of these inputs, in this order, filled up to ``num_tokens``.

        Raises:
            UserError: the rows are damaged, or their lists do not fit.
        """
        info = self.layers[layer]
        table = self._take(self._rows[layer][self._indices(ids)])
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
        # Sets are sorted, so that two recordings of the same set are equal element by element.
        if not info.ordered:
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
        rows = self._take(self._rows[layer][self._indices(ids)])
        return checks.counts(f"{self.path}, {layer}", rows, num_experts=self.layers[layer].num_experts)

    def _take(self, rows: NDArray[np.int64]) -> pa.Table:
        """Return rows by their numbers."""
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        # Stable, so that rows of one group are taken together and in order.
        order = np.argsort(groups, kind="stable")
        ends = np.flatnonzero(np.diff(groups[order], append=-1)) + 1
        parts = [
            _rows_of(self._group(int(groups[part[0]])), rows[part] - self._starts[groups[part[0]]])
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
            table = self._row_group(
                group, [name for name in COLUMNS if name in _READ_COLUMNS & self._columns]
            )
            self._cache[group] = table
            self._bytes += table.nbytes
        self._cache.move_to_end(group)
        # The newest group stays, however large it is.
        while self._bytes > CACHE and len(self._cache) > 1:
            self._bytes -= self._cache.popitem(last=False)[1].nbytes
        return self._cache[group]

    def _row_group(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """Return a row group with some columns, or all of them.

        Raises:
            UserError: it is damaged.
        """
        try:
            return self._file.read_row_group(group, columns=columns, use_threads=False)
        except UNREADABLE as error:
            raise checks.damage_error(self.path) from error

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
        present = name in self._columns and table[name].is_valid().to_numpy()
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
    # Rows beside one another are a slice, which copies nothing.
    if (np.diff(rows) == 1).all():
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


# Open a file as a routing trace: what it says of itself, and whether its columns are those of its version.

# What Arrow says of a damaged file.
UNREADABLE = (pa.ArrowException, OSError, ValueError)


def open_file(path: Path) -> pq.ParquetFile:
    """Return an open Parquet file.

    Raises:
        UserError: it is missing, truncated or none.
    """
    if is_folder(path):
        example = min(path.rglob("*.parquet"), default=path / "clean.parquet")
        raise UserError(f"{path} is a folder; name the traces in it, e.g. {example}.")
    if status(path) is None:
        raise UserError(f"There is no trace {path}.{did_you_mean_path(path)}")
    check_regular(path)
    # Checksums are verified: a flipped bit would otherwise become another expert.
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except UNREADABLE as error:
        # A log is the most likely mix-up, so it gets a message of its own.
        if path.suffix == ".jsonl":
            raise UserError(
                f"{path} is a log; make a trace of it: moeprobe trace import {path} DST."
            ) from None
        with open_regular(path) as file:
            check_trace_kind(path, file.peek(HEAD)[:HEAD])
        raise checks.damage_error(path) from error


def metadata_of(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a trace of a version that is known.

    Raises:
        UserError: the version is not known, or the columns or metadata do not fit a trace.
    """
    text = (schema.metadata or {}).get(KEY)
    if text is None:
        raise UserError(
            f"{path} is a Parquet file, but no routing trace of moeprobe; record one: moeprobe trace record."
        )
    try:
        metadata = json.loads(text)
        form, version = metadata["format"], metadata["version"]
        # Half a character (a lone surrogate) could be neither printed nor written.
        json.dumps(metadata, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise checks.damage_error(path) from error
    if form != FORMAT or version not in READ:
        raise UserError(
            f"{path} is a trace of version {version}, and this moeprobe reads versions {READ[0]} to {VERSION}; update "
            "moeprobe."
        )
    checks.metadata(path, metadata)
    expected = pa.schema([field for field in SCHEMA if field.name not in LACKING.get(version, ())])
    if not schema.remove_metadata().equals(expected):
        wrong = [field.name for field in expected if schema.get_field_index(field.name) < 0]
        wrong += [name for name in schema.names if expected.get_field_index(name) < 0]
        wrong += [
            field.name for field in expected if not wrong and not schema.field(field.name).equals(field)
        ]
        raise UserError(
            f"{path}: the column {(wrong or ['id'])[0]} is not as a trace has it; record it again."
        )
    return metadata
