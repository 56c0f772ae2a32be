"""Bounds of Parquet files that come from others: a few kilobytes can unpack to any number of equal values."""

from pathlib import Path
from typing import Any

from moeprobe.errors import UserError

# Values of a row group, which is held in memory; and rows of a file of which something is read at once.
_MOST_VALUES, _MOST_ROWS = 2**28, 2**25


def check_size(path: Path, about: Any, *, whole: bool) -> None:
    """Raise ``UserError`` where a file holds more than any run or trace of its kind would.

    Args:
        path: the file, for the sentence.
        about: its metadata, of pyarrow.
        whole: whether something of all its rows is read at once.
    """
    rows = int(about.num_rows)
    if whole and rows > _MOST_ROWS:
        raise UserError(f"{path} holds {rows:,} rows, more than the {_MOST_ROWS:,} that are read at once.")
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        values = max((group.column(column).num_values for column in range(group.num_columns)), default=0)
        if values > _MOST_VALUES:
            raise UserError(
                f"{path} holds {values:,} values in one row group; at most {_MOST_VALUES:,} are read at once."
            )
