"""The tables: their columns, and the files they are kept in.

``table.csv`` is long: one value per line, with its interval and its denominator. ``images.parquet`` holds the sums
per image that every value follows from, so that runs can be compared, merged and reported without the model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from moeprobe.accumulators import Accumulator, Cell
from moeprobe.files import whole

# Each column of table.csv (and of comparison.csv, which adds `reference`), with what it says.
COLUMNS: dict[str, str] = {
    "run": "name of the output folder",
    "checkpoint": "name of the checkpoint's folder",
    "group": "name shared by checkpoints that differ in their training seed alone; empty if none",
    "train_seed": "seed the checkpoint was trained with",
    "dataset": "data set probed",
    "split": "its split",
    "layer": "MoE layer, e.g. blocks.3; empty for the model's output",
    "router": "the layer's router",
    "top_k": "experts chosen per token",
    "view": "perturbation; `clean` for none",
    "severity": "its severity, in the view's unit; empty for pairs of random views",
    "draw": "number of the random draw; empty when pooled",
    "tokens": "patch or prefix (CLS); empty for the model's output",
    "metric": "what is measured",
    "null": "which chance level a `_chance` or `_kappa` is about: pooled or position",
    "expert": "expert the value is about; empty if about none",
    "expert_b": "second expert, for values about two",
    "class": "class the value is about; empty when pooled",
    "value": "the value; empty where it does not exist (see flag)",
    "ci_low": "lower end of the 95 % interval over images",
    "ci_high": "upper end",
    "images": "images it rests on",
    "trials": "denominator: corresponding patches, tokens or images",
    "seed": "seed of the probing (views and bootstrap)",
    "flag": "collapsed: chance is 1, so kappa does not exist; few_images: under 20, no interval; unstable: "
    "undefined in more than 1 % of the resamples, no interval",
}
CELL_COLUMNS = ("layer", "router", "top_k", "view", "severity", "draw", "tokens")


def image_table(accumulator: Accumulator, *, checkpoint: str) -> pa.Table:
    """Return the sums per image of one checkpoint, one row per (cell, image)."""
    parts = []
    for sums in accumulator.cells():
        names, columns = sums.joined()
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
        parts.append(pa.table(identity | {name: _to_arrow(column) for name, column in columns.items()}))
    return concatenate(parts)


def concatenate(parts: list[pa.Table]) -> pa.Table:
    """Join tables of sums; a column that a part does not have is empty there."""
    return pa.concat_tables(parts, promote_options="default")


def _to_arrow(column: NDArray[np.generic]) -> pa.Array:
    if column.ndim == 1:
        return pa.array(column)
    lists = column.reshape(len(column), -1)
    offsets = np.arange(len(lists) + 1, dtype=np.int32) * lists.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(lists.ravel()))


def cells(images: pa.Table) -> Iterator[tuple[str, Cell, list[str], dict[str, NDArray[np.generic]]]]:
    """Yield (checkpoint, cell, image names, columns) of each cell, in the order of the table."""
    identity = images.select(["checkpoint", *CELL_COLUMNS]).to_pandas()
    identity["severity"] = identity["severity"].astype(float)
    grouped = identity.groupby(["checkpoint", *CELL_COLUMNS], sort=False, dropna=False)
    for key, rows in grouped.indices.items():
        checkpoint, *values = key
        part = images.take(pa.array(rows))
        cell = Cell(**dict(zip(CELL_COLUMNS, values, strict=True)))
        columns = {
            name: _to_numpy(part[name], cell.top_k)
            for name in part.column_names
            if name not in ("checkpoint", "image_id", *CELL_COLUMNS) and part[name].null_count == 0
        }
        yield checkpoint, cell, part["image_id"].to_pylist(), columns


def _to_numpy(column: pa.ChunkedArray, top_k: int) -> NDArray[np.generic]:
    if not pa.types.is_list(column.type):
        return column.to_numpy()
    array = column.combine_chunks()
    flat = array.flatten().to_numpy()
    lists = flat.reshape(len(array), -1)
    # Choices of experts are kept flat, K per patch.
    return lists.reshape(len(array), -1, top_k) if pa.types.is_int16(array.type.value_type) else lists


def write_images(path: Path, images: pa.Table) -> None:
    """Write the sums per image."""
    with whole(path) as temporary:
        pq.write_table(images, temporary, compression="zstd")


def read_images(path: Path) -> pa.Table:
    """Read the sums per image."""
    return pq.read_table(path)


def frame(rows: list[dict[str, Any]], *, comparison: bool = False) -> pd.DataFrame:
    """Return rows as a data frame with all columns in their order."""
    names = list(COLUMNS)
    if comparison:
        names.insert(names.index("checkpoint") + 1, "reference")
    return pd.DataFrame(rows, columns=names)


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table; ten significant digits, which is less than the rounding of a sum in another order."""
    with whole(path) as temporary:
        table.to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n")
