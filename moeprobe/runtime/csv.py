"""CSV files as spreadsheets and pandas read them back."""

import csv
from pathlib import Path

import pandas as pd

from moeprobe.runtime.characters import neutral
from moeprobe.runtime.files import atomic_file


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table; ten significant digits, which is less than the rounding of a sum in another order.

    Texts that a spreadsheet would take for a formula get a leading apostrophe (``characters.neutral``).
    """
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    table = table.assign(**{name: table[name].map(_as_cell) for name in texts})
    # Python's writer leaves a carriage return unquoted, and readers end the line there.
    returns = any(table[name].astype("str").str.contains("\r").any() for name in texts)
    quoting = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    with atomic_file(path) as temporary:
        table.to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n", quoting=quoting)


def _as_cell(value: object) -> object:
    return neutral(value) if isinstance(value, str) else value
