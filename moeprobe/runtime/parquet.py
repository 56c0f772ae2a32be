"""Open Parquet files, of a bounded size only."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.errors import UserError
from moeprobe.runtime.files import Version, version_of

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# Files that are held open; a run of many images has many parts.
_OPEN = 16


@functools.lru_cache(maxsize=_OPEN)
def open_parquet(path: Path, version: Version, *, verify: bool = False) -> "ParquetFile":
    """Return an open Parquet file.

    Args:
        path: the file.
        version: what ``version_of`` said of it when its row groups were indexed.
        verify: whether checksums of pages are compared as they are read.

    Raises:
        UserError: the file has changed, so the index of its row groups is outdated.
    """
    from pyarrow.parquet import ParquetFile  # here, since most commands read none

    file = ParquetFile(path, page_checksum_verification=verify)
    if version_of(path) != version:
        raise UserError(f"{path} was replaced while it was read; repeat the command.")
    return file


# Values of a row group, which is held in memory; and rows of a file of which something is read at once.
MOST_VALUES, MOST_ROWS = 2**28, 2**25


def check_parquet_size(path: Path, metadata: Any, *, all_rows: bool) -> None:
    """Raise ``UserError`` where a file holds more than any run or trace of its kind would.

    Args:
        path: the file, for the sentence.
        metadata: of pyarrow.
        all_rows: whether something of all its rows is read at once.
    """
    rows = int(metadata.num_rows)
    if all_rows and rows > MOST_ROWS:
        raise UserError(f"{path} holds {rows:,} rows, more than the {MOST_ROWS:,} that are read at once.")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        values = max((group.column(column).num_values for column in range(group.num_columns)), default=0)
        if values > MOST_VALUES:
            raise UserError(
                f"{path} holds {values:,} values in one row group; at most {MOST_VALUES:,} are read at once."
            )
