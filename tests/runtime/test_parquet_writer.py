"""Parquet is written in few calls into the file system, with the bytes that it always had."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moeprobe.recordings import format as recordings
from moeprobe.results.tables import open_writer

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or writes to /dev/full")
GROUPS = 200
COLUMNS = [f"column {number}" for number in range(10)]


def calls() -> int:
    """How often this process has written so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscw"])


def write_sums(path: Path) -> None:
    table = pa.table({name: [1.0, 2.0] for name in COLUMNS})
    with open_writer(path, table.schema) as writer:
        for _ in range(GROUPS):
            writer.write_table(table)


def write_trace(path: Path) -> None:
    zeros = {"string": "a", "bool": False}
    values = {
        one.name: [] if pa.types.is_list(one.type) else zeros.get(f"{one.type}", 0)
        for one in recordings.SCHEMA
    }
    row = pa.RecordBatch.from_pylist([values], schema=recordings.SCHEMA)
    with recordings.writing(path) as writer:
        for _ in range(GROUPS):
            writer.write([row])
        writer.close({})


@linux
@pytest.mark.parametrize("write", [write_sums, write_trace])
def test_many_small_pieces_are_few_calls(write: Callable[[Path], None], tmp_path: Path) -> None:
    before = calls()
    write(tmp_path / "a.parquet")
    assert calls() - before < 10
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == GROUPS


def test_the_bytes_are_those_that_arrow_writes(tmp_path: Path) -> None:
    write_sums(tmp_path / "a.parquet")
    table = pa.table({name: [1.0, 2.0] for name in COLUMNS})
    settings = {"compression": "zstd", "compression_level": 9, "use_byte_stream_split": COLUMNS}
    with pq.ParquetWriter(tmp_path / "b.parquet", table.schema, use_dictionary=[], **settings) as writer:
        for _ in range(GROUPS):
            writer.write_table(table)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@linux
def test_a_full_disk_is_told_at_the_latest_when_the_file_is_closed() -> None:
    with pytest.raises(OSError, match="No space left") as raised:
        write_sums(Path("/dev/full"))
    assert raised.value.errno == errno.ENOSPC
