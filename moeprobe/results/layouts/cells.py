"""Tables as the terminal and pages show them: cells that carry what they are sorted by, apart from how they read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from moeprobe.metrics.registry import find
from moeprobe.results.numbers import between, count, decimals_of, number

# A browser can show more, a reader cannot; the file that is embedded beside holds all.
MAX_ROWS = 300


@dataclass(frozen=True)
class TableCell:
    """What stands in a cell.

    Attributes:
        text: how it reads.
        between: the interval next to a value.
        key: the number that the column is sorted by; None = its text.
        screen: how it reads in a terminal, where that is otherwise.
        count: of how many nothing was seen.
    """

    text: str
    between: str = ""
    key: float | None = None
    screen: str = ""
    count: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        return " ".join(part for part in (self.text, self.between, self.count) if part)

    @property
    def numeric(self) -> bool:
        """Whether it is set as a number."""
        return self.key is not None or self.text == "–"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what it is about.
        columns: headings.
        rows: a cell per column.
        note: a sentence below.
        folded: whether a page folds it up until asked for.
        keys: how many of the first columns say what a line is about.
        place: how many of these lines share that stand together; a terminal says it once.
        details: how many of the last columns a terminal leaves out.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""
    folded: bool = False
    keys: int = 0
    place: int = 0
    details: int = 0

    @cached_property
    def numeric_columns(self) -> Sequence[bool]:
        """Whether each column holds numbers, so that its heading stands over them; every cell asks for it."""
        filled = ([row[i] for row in self.rows if row[i].text] for i in range(len(self.columns)))
        return [bool(cells) and all(cell.numeric for cell in cells) for cells in filled]

    @property
    def is_wide(self) -> bool:
        """Whether intervals stand below their values, to save width."""
        return sum(any(row[i].between for row in self.rows) for i in range(len(self.columns))) > 3


def value(row: Mapping[str, Any] | None, *, signed: bool = False) -> TableCell:
    """Return a table's value with its interval; an empty cell where there is no such row."""
    if row is None:
        return TableCell("")
    key = None if row["value"] != row["value"] else float(row["value"])
    return TableCell(
        number(row["value"], signed=signed, decimals=decimals_of(row)),
        between(row, signed=signed),
        key,
        count=count(row, signed=signed),
    )


def severity(at: float | None) -> TableCell:
    """Return a severity; empty where there is none."""
    return TableCell("") if at is None or at != at else TableCell(f"{at:g}", key=float(at))


def severity_heading(metrics: Iterable[str]) -> str:
    """Return what the column ``severity`` is called where these metrics are measured, e.g. shots."""
    return " or ".join(dict.fromkeys(find(name).metric.severity for name in dict.fromkeys(metrics)))


def counts(values: Iterable[float]) -> TableCell:
    """Return the different counts, e.g. of images, in the order of what they are of: mostly one."""
    different = list(dict.fromkeys(int(count) for count in values))
    return TableCell(
        " / ".join(f"{count:,}" for count in different), key=float(different[0]) if different else None
    )


def trials_of(count: str) -> str:
    """Return so many trials, of a count that is written."""
    return f"{count} trial{'' if count == '1' else 's'}"


def whole_table(table: pd.DataFrame, *, name: str) -> Table:
    """Return a CSV as it is written; columns that never vary are named once, below."""
    constant = {
        column: table[column].iloc[0] for column in table if len(table) > 1 and table[column].nunique() == 1
    }
    varying = table.drop(columns=list(constant))
    parts = []
    if len(varying) > MAX_ROWS:
        parts.append(f"The first {MAX_ROWS:,} of {len(varying):,} rows; {name} holds all of them.")
        varying = varying[:MAX_ROWS]
    constants = ", ".join(f"{column}: {text}" for column, text in constant.items() if text)
    if constants:
        parts.append(f"In every row: {constants}.")
    rows = [[TableCell(text) for text in row] for row in varying.itertuples(index=False, name=None)]
    return Table(f"{name}, {len(table):,} rows", list(varying.columns), rows, " ".join(parts))
