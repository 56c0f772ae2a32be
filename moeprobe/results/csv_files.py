"""CSV files of finished runs, each column read by its declared type.

Counts are whole numbers; draws and experts are whole or missing; other numbers are finite or missing. All other
columns are texts as they were, since a checkpoint may be called "nan" or "007".
"""

import codecs
import csv
import io
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.results.columns import COUNTS, INTEGERS, NUMBERS, SEEDS, WHOLE
from moeprobe.results.own_files import REPEAT, reading
from moeprobe.runtime.characters import restore
from moeprobe.runtime.files import read_bytes

# Bytes of a table.
_LARGEST = 2**30
# What other programs write, by name.
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
# A larger whole number cannot be told from its neighbors once it is a float.
_MOST = 2**53


def read_values(
    path: Path, *, content: bytes | None = None, numbers: Collection[str] = NUMBERS, mend: str = REPEAT
) -> pd.DataFrame:
    """Return a table with numbers as numbers.

    Args:
        path: the file.
        content: what it holds; None = it is read.
        numbers: columns of numbers; all others are texts.
        mend: as in ``own_files.validate``.

    Raises:
        UserError: a column is there twice, or holds something else than its type.
    """
    content = _content(path, content)
    with reading(path, mend=mend):
        header = _header(content)
        # Seeds have any number of digits, which floats would lose.
        types = {name: float if name in numbers else str for name in header if name not in SEEDS}
        table = _parse(content, dtype=types, na_values={name: [""] for name in numbers})
        columns = {
            name: _convert_column(table[name]) if name in numbers else table[name].map(restore)
            for name in header
        }
        return table.assign(**columns)


def read_texts(path: Path, *, content: bytes | None = None) -> pd.DataFrame:
    """Return a table with every cell as text.

    Raises:
        UserError: it is no table.
    """
    content = _content(path, content)
    with reading(path):
        _header(content)
        return _parse(content, dtype=str).map(restore)


def read_rows(path: Path, *, texts: Collection[str]) -> pd.DataFrame:
    """Return a table with columns of texts by their names; the types of all others are what their cells look like.

    Raises:
        UserError: it is no table.
    """
    content = _content(path, None)
    with reading(path):
        header = _header(content)
        text_columns = [name for name in header if name in texts]
        table = _parse(
            content,
            dtype=dict.fromkeys(text_columns, str),
            dtype_backend="numpy_nullable",
            na_values={name: [""] for name in header if name not in texts},
        )
        return table.assign(**{name: table[name].map(restore) for name in text_columns})


def check_numbers(
    path: Path,
    texts: pd.DataFrame,
    *,
    integers: Collection[str] = (),
    numbers: Collection[str] = (),
    required: bool,
) -> None:
    """Check columns of numbers in a table that was read as text.

    Args:
        path: the file, for the sentence.
        texts: the table.
        integers: columns of whole numbers.
        numbers: columns of other numbers.
        required: whether no cell may be empty.

    Raises:
        UserError: a cell is something else.
    """
    with reading(path):
        for name in texts.columns.intersection([*integers, *numbers]):
            cells = texts[name]
            values = pd.to_numeric(cells, errors="coerce").astype(float)
            if (values.isna() & (cells != "")).any():
                raise ValueError(f"{name} holds something else than numbers")
            _check(values, is_integer=name in integers, is_required=required)


def _content(path: Path, content: bytes | None) -> bytes:
    """Return the content of a table without the mark that spreadsheets put before UTF-8."""
    return (read_bytes(path, limit=_LARGEST) if content is None else content).removeprefix(codecs.BOM_UTF8)


def _header(content: bytes) -> list[str]:
    """Return the names of the columns, each of which is there once."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError("it is in UTF-16, as some spreadsheets save it, and not in UTF-8")
    if b"\0" in content:
        raise ValueError("it holds bytes that are no text")
    header = next(csv.reader(io.StringIO(content.decode("utf-8"), newline="")), [])
    # Every table has several columns, none of which has such a character in its name.
    for character, separator in _SEPARATORS.items():
        if len(header) == 1 and character in header[0]:
            raise ValueError(
                f"{separator} separate its columns, as some spreadsheets save it, and not commas"
            )
    twice = [name for name, number in Counter(header).items() if number > 1]
    if twice or not header:
        raise ValueError(f"it has the column {twice[0]} twice" if twice else "it has no columns")
    return header


def _parse(content: bytes, **settings: Any) -> pd.DataFrame:
    table = pd.read_csv(io.BytesIO(content), keep_default_na=False, **settings)
    # Where lines have more cells than columns, pandas takes the first for names of lines.
    if not isinstance(table.index, pd.RangeIndex):
        raise ValueError("its lines have more cells than columns")
    return table


def _convert_column(numbers: pd.Series) -> pd.Series:
    """Return a column of numbers as its declared type; raises ``ValueError`` where a cell is something else."""
    name = numbers.name
    if name in SEEDS:
        if not numbers.dropna().astype(str).str.fullmatch(r"-?\d+(\.0)?").all():
            raise ValueError(f"{name} holds something else than whole numbers")
        return numbers
    _check(numbers, is_integer=name in INTEGERS, is_required=name in COUNTS)
    if name in WHOLE:
        return numbers.astype("Int64")
    return numbers.astype("int64") if name in INTEGERS and not numbers.isna().any() else numbers


def _check(numbers: pd.Series, *, is_integer: bool, is_required: bool) -> None:
    name = numbers.name
    if is_required and numbers.isna().any():
        raise ValueError(f"{name} is empty in line {int(numbers.isna().to_numpy().argmax()) + 2}")
    if np.isinf(numbers).any():
        raise ValueError(f"{name} is infinite")
    if is_integer and not (numbers.isna() | ((numbers % 1 == 0) & (numbers.abs() < _MOST))).all():
        raise ValueError(f"{name} holds something else than whole numbers")
    if name in COUNTS and (numbers < 0).any():
        raise ValueError(f"{name} is negative")
