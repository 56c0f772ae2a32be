"""The tables, and the files they are kept in.

``table.csv`` is long: one value per line, with its interval and its denominator. ``images.parquet`` holds the sums
per image that every value follows from, so that runs can be compared, merged and reported without the model.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from moeprobe.inputs.modality import TOKEN_KINDS, Modality, modality_of
from moeprobe.metrics.registry import agreement, set_match, tokens_choose
from moeprobe.results.columns import COLUMNS, COMPARISON_COLUMNS, UNIT, WHOLE
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.runtime.parquet_writer import open_parquet_writer

# The view of a clean image run again unchanged: in the same batch; in halves of it; in a narrower dtype.
FLOORS = ("clean_again", "clean_other_batch", "clean_other_dtype")
CELL_COLUMNS = ("layer", "router", "top_k", "view", "severity", "draw", "tokens")
NOTE = b"moeprobe"
# What the line of a value has in these columns where no interval is known.
WITHOUT_INTERVAL = {"ci_low": np.nan, "ci_high": np.nan, "interval": ""}
# With more layers a figure has an axis in place of panels, and sentences and columns name the first and the last.
SHOWN_LAYERS = 4


def first_and_last(layers: list[str], *, limit: int = SHOWN_LAYERS) -> list[str]:
    """Return the layers that are shown: of more than ``limit`` the first and the last."""
    return layers if len(layers) <= limit else [layers[0], layers[-1]]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table as JSON records; empty values are null."""
    return json.loads(table.to_json(orient="records", double_precision=10))


def image_table(accumulator: Accumulator, *, checkpoint: str) -> pa.Table:
    """Return the sums per image of one checkpoint, one row per (cell, image)."""
    return concatenate([table for _, table in cell_tables(accumulator, checkpoint=checkpoint)])


def cell_tables(accumulator: Accumulator, *, checkpoint: str) -> Iterator[tuple[Cell, pa.Table]]:
    """Yield each cell of one checkpoint with its sums, one row per image in the order of their names."""
    for sums in accumulator.cells():
        names, columns = sums.join()
        cell = sums.cell
        identity = {
            "checkpoint": [checkpoint] * len(names),
            "layer": [cell.layer] * len(names),
            "router": [cell.router] * len(names),
            "top_k": pa.array([cell.top_k] * len(names), pa.int64()),
            "view": [cell.view] * len(names),
            "severity": pa.array([cell.severity] * len(names), pa.float64(), from_pandas=True),
            "draw": pa.array([cell.draw] * len(names), pa.int64()),
            "tokens": [cell.tokens] * len(names),
            "image_id": names.tolist(),
        }
        yield cell, pa.table(identity | {name: _to_arrow(column) for name, column in columns.items()})


def concatenate(parts: list[pa.Table]) -> pa.Table:
    """Join tables of sums; a column that a part does not have is empty there, and no parts make an empty table."""
    parts = [part for part in parts if part.num_rows]
    return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})


def _to_arrow(column: NDArray[np.generic]) -> pa.Array:
    if column.ndim == 1:
        return pa.array(column)
    lists = column.reshape(len(column), -1)
    offsets = np.arange(len(lists) + 1, dtype=np.int32) * lists.shape[1]
    values = pa.array(lists.ravel())
    # Parquet's own name for what a list holds: a table that was written and read is the one in memory.
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(pa.field("element", values.type)))


def rows_of_cells(images: pa.Table) -> Iterator[tuple[str, Cell, NDArray[np.int64]]]:
    """Yield (checkpoint, cell, its rows by image name) of a table of sums, as the cells first come."""
    identity = images.select(["checkpoint", *CELL_COLUMNS, "image_id"]).to_pandas()
    identity["severity"] = identity["severity"].astype(float)
    number = identity.groupby(["checkpoint", *CELL_COLUMNS], sort=False, dropna=False).ngroup().to_numpy()
    order = np.lexsort((identity["image_id"].to_numpy(dtype=object), number))
    for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        first = identity.iloc[rows[0]]
        cell = Cell(
            layer=first["layer"],
            router=first["router"],
            top_k=int(first["top_k"]),
            view=first["view"],
            severity=float(first["severity"]),
            draw=int(first["draw"]),
            tokens=first["tokens"],
        )
        yield first["checkpoint"], cell, rows


def open_writer(path: Path, schema: pa.Schema) -> AbstractContextManager[pq.ParquetWriter]:
    """Return a writer of sums per image, with the compression that suits them."""
    # Doubles that come of float32 hold many zeros, byte by byte: a quarter less to keep.
    packing: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 9,
        "use_byte_stream_split": _leaves(schema, pa.types.is_floating),
        "use_dictionary": _leaves(schema, lambda kind: not pa.types.is_floating(kind)),
    }
    return open_parquet_writer(path, schema, **packing)


def _leaves(schema: pa.Schema, predicate: Callable[[pa.DataType], bool]) -> list[str]:
    """Return the columns of a file, as Parquet names those in lists, whose values are of a wanted type."""
    fields = [(field.name, field.type) for field in schema]
    leaves = [
        (f"{name}.list.element", kind.value_type) if pa.types.is_list(kind) else (name, kind)
        for name, kind in fields
    ]
    return [name for name, kind in leaves if predicate(kind)]


def read_note(path: Path) -> dict[str, Any]:
    """Read the note of a file of sums per image; empty where there is none."""
    return json.loads((pq.read_schema(path).metadata or {}).get(NOTE, b"{}"))


def modality_of_table(table: pd.DataFrame, *, data: str = "", inputs: Modality | None = None) -> Modality:
    """Return the modality of a table's inputs, with the sampling unit.

    Args:
        table: values or differences.
        data: as in ``modality_of``.
        inputs: what they are; None = as its tokens say.
    """
    modality = inputs or modality_of(table["tokens"], data=data)
    return replace(modality, sampled=str(table[UNIT].iloc[0])) if UNIT in table and len(table) else modality


def frame(rows: list[dict[str, Any]], *, judged: bool = False) -> pd.DataFrame:
    """Return rows as a data frame with all columns in their order; ``judged``: of differences with their verdicts."""
    names = list(COLUMNS)
    if judged:
        names.insert(names.index("checkpoint") + 1, "reference")
        names += [name for name in COMPARISON_COLUMNS if name not in names]
    # Tables without units have no column of them.
    if any(UNIT in row for row in rows[:1]):
        names.append(UNIT)
    # Numbers of draws and experts stay whole where most lines are about none.
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(WHOLE, "Int64"))


def with_rows(table: pd.DataFrame, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with rows more, which come last."""
    if not rows:
        return table
    with warnings.catch_warnings():
        # pandas 2 says that 3 takes the type of a column of no values, too; numbers and files are the same.
        warnings.simplefilter("ignore", FutureWarning)
        return pd.concat([table, frame(rows)], ignore_index=True)


def is_pooled(numbers: pd.Series) -> pd.Series:
    """Return which rows are about no single draw or expert: their number is missing in memory, and empty in a CSV."""
    return numbers.isna() | (numbers.astype(object) == "")


def of_all_tokens(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are about no single kind of the tokens of sequences with pictures."""
    return table[~table["tokens"].isin(TOKEN_KINDS)]


def agreement_of(table: pd.DataFrame) -> str:
    """Return the agreement that is read first of a table: the first one that all its checkpoints have."""
    return agreement(zip(table["checkpoint"], table["metric"], strict=True))


def set_match_of(table: pd.DataFrame) -> str:
    """Return the match of the sets that process tokens, which all checkpoints of a table have; empty without one."""
    return set_match(zip(table["checkpoint"], table["metric"], strict=True))


def with_shown_intervals(comparison: pd.DataFrame) -> pd.DataFrame:
    """Return differences with the intervals of their families, which are shown, as ``ci_low`` and ``ci_high``."""
    return comparison.assign(ci_low=comparison["sim_low"], ci_high=comparison["sim_high"])


def deciding_match(table: pd.DataFrame) -> str:
    """Return the match by which something is concluded: of what processes tokens, their sets where all have any."""
    return set_match_of(table) or agreement_of(table)


def kappa_symbol(table: pd.DataFrame, match: str) -> str:
    """Return what κ of a match is called: κ₁ where it is of the first of several experts per token, else κ."""
    # Checkpoints with one expert per token and with two have no match of sets in common.
    several = set_match_of(table) or (table["top_k"] > 1).any()
    return "κ₁" if several and tokens_choose(match) else "κ"


def by_first_seen(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return a table with the rows of one place together, in the order in which its places first appear.

    Checkpoints of different kinds have different metrics, so the rows of one layer may not be adjacent.
    """
    ranks = pd.DataFrame({name: pd.factorize(table[name], use_na_sentinel=False)[0] for name in columns})
    return table.iloc[ranks.sort_values(list(columns), kind="stable").index]
