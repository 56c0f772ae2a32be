"""Write Parquet in few calls into the file system, each of which is a round trip on a server of files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# Arrow writes every page and header for itself, some bytes at a time, and asks for the place after each.
_BUFFER = 4 * 2**20


@contextmanager
def open_parquet_writer(path: Path, schema: pa.Schema, **packing: Any) -> Iterator[pq.ParquetWriter]:
    """Yield a writer of a Parquet file; ``packing`` are the settings of ``pq.ParquetWriter``."""
    with (
        pa.output_stream(path, compression=None, buffer_size=_BUFFER) as stream,
        pq.ParquetWriter(stream, schema, **packing) as writer,
    ):
        yield writer
