"""Image data sets of Hugging Face's ``datasets``, read as streams (``streaming=True``), with no copy in its cache.

``huggingface_stream:LOCATION``, where LOCATION is what it is for ``huggingface``. A stream has no way to an image but
past those before it in its shard, so a run takes the images that it has chosen shard by shard, each in its order: a
process that measures a part of them reads the shards of its part alone.
"""

import itertools
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, as_labels, check_split
from moeprobe.inputs.data.readers import hub_rows
from moeprobe.runtime.hub import downloads, local_unless_allowed, may_download

# Rows that are held at a time.
_ROWS = 32


class HuggingfaceStream(ImageDataset):
    """A data set of Hugging Face's ``datasets``, streamed: saved to disk, parquet files, or from the hub.

    Columns, splits, labels and image ids follow ``huggingface``. The column of labels is read once at the
    beginning, of parquet files no other; then each image where its turn comes. An image out of turn is found too, by
    reading its shard from the start.
    """

    streamed = True

    def __init__(self, *, split: str, location: str | None = None) -> None:
        datasets = hub_rows.library()
        if not location:
            raise UserError(
                "'huggingface_stream' needs a folder or a name: write huggingface_stream:PATH_OR_NAME."
            )
        parts = hub_rows.splits_of(_streams(datasets, location))
        check_split(split, tuple(parts))
        features = parts[split].features
        if features is None:
            raise UserError(f"{location!r} does not say what its columns hold; read it with huggingface:.")
        self._location, self._may_download = location, may_download()
        self._columns = hub_rows.find_columns(datasets, features, location)
        self.class_names = self._columns.class_names
        self._shards = _shards(datasets, location, split, self._columns.names)
        labels = self._read_labels(_shards(datasets, location, split, [self._cheapest(features)]))
        # Where each shard begins in the list of all images, and where the last one ends.
        self._starts = list(itertools.accumulate((len(shard) for shard in labels), initial=0))
        if not self._starts[-1]:
            raise UserError(f"The split {split!r} of {location!r} is empty.")
        self._labels = np.concatenate(labels)
        self.image_ids = [f"{split}/{index}" for index in range(len(self._labels))]
        self._open: _Open | None = None

    def example(self, index: int) -> Example:
        """Return row ``index`` of the split, in the order of the shards and of the rows in them."""
        shard = bisect_right(self._starts, index) - 1
        row = index - self._starts[shard]
        opened = self._open
        # A copy of this process would share the place in the file with it.
        if opened is None or (opened.shard, opened.process) != (shard, os.getpid()) or row < opened.first:
            opened = self._open = _Open(shard, self.shard_tables(self._shards[shard], shard))
        example = opened.row(row)
        if example is None:
            self._open = None
            raise UserError(
                f"Shard {shard} of {self._location!r} has become shorter while it was read; start again."
            )
        return self._columns.example(example, self.image_ids[index], location=self._location)

    def in_order(self, indices: Sequence[int]) -> list[int]:
        """Return images shard by shard, each shard's in its order; the shard of the first one first."""
        shards = [bisect_right(self._starts, index) - 1 for index in indices]
        rank = {shard: index for index, shard in enumerate(dict.fromkeys(shards))}
        return [index for _, index in sorted(zip((rank[shard] for shard in shards), indices, strict=True))]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}

    def _cheapest(self, features: Any) -> str:
        """Return a cheap column that tells the number of rows: the labels, or any column except the images."""
        candidates = [name for name in features if name != self._columns.image]
        return self._columns.label or (candidates or [self._columns.image])[0]

    def _read_labels(self, shards: Sequence[Any]) -> list[NDArray[np.int64]]:
        """Return the labels of each shard, -1 = none."""
        label = self._columns.label
        read = []
        for number, shard in enumerate(shards):
            labels: list[int | None] = []
            for table in self.shard_tables(shard, number):
                labels += table[label].to_pylist() if label else [None] * table.num_rows
            read.append(as_labels(labels).clip(min=-1))
        return read

    def shard_tables(self, shard: Any, number: int) -> Iterator[Any]:
        """Yield the rows of a shard as tables of Arrow.

        Raises:
            UserError: it cannot be read, or the hub cannot be reached.
        """
        # Not ``iter(shard)``, which in a loader process is a part of the shard.
        tables = shard.with_format("arrow").iter(batch_size=_ROWS)
        while True:
            try:
                with downloads() if self._may_download else nullcontext(), local_unless_allowed():
                    table = next(tables, None)
            except Exception as error:  # files, network and formats: each has errors of its own
                reason = hub_rows.reason(error)
                raise UserError(f"Shard {number} of {self._location!r} cannot be read: {reason}.") from error
            if table is None:
                return
            yield table


class _Open:
    """A shard that is read, and the rows of it at hand.

    Attributes:
        shard: its number.
        process: which reads it.
        first: the first row at hand; those before it are gone.
    """

    def __init__(self, shard: int, tables: Iterator[Any]) -> None:
        self.shard, self.process, self.first = shard, os.getpid(), 0
        self._tables, self._table = tables, next(tables, None)

    def row(self, row: int) -> dict[str, Any] | None:
        """Return a row from ``first`` on, undecoded; None where the shard ends before it."""
        while self._table is not None and row >= self.first + self._table.num_rows:
            self.first += self._table.num_rows
            self._table = next(self._tables, None)
        if self._table is None:
            return None
        example: dict[str, Any] = self._table.slice(row - self.first, 1).to_pylist()[0]
        return example


def _streams(datasets: Any, location: str, **more: Any) -> Any:
    """Return the splits as streams; saved data are memory-mapped, with one stream per file."""
    loaded = hub_rows.load(datasets, location, streaming=True, **more)
    if not hub_rows.is_saved(location):
        return loaded
    if isinstance(loaded, dict):
        return {name: _stream(rows) for name, rows in loaded.items()}
    return {str(loaded.split or "test"): _stream(loaded)}


def _stream(rows: Any) -> Any:
    return rows.to_iterable_dataset(num_shards=max(min(len(rows.cache_files), len(rows)), 1))


def _shards(datasets: Any, location: str, split: str, columns: list[str]) -> list[Any]:
    """Return the shards of a split, a stream each, of some columns; of parquet files no other is read."""
    try:
        rows = hub_rows.splits_of(_streams(datasets, location, columns=columns))[split]
    except UserError:  # of another format, which knows no columns before it is read
        rows = hub_rows.splits_of(_streams(datasets, location))[split]
    return [
        rows.shard(num_shards=rows.num_shards, index=number).select_columns(columns)
        for number in range(rows.num_shards)
    ]
