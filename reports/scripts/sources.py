"""What the five sources hold, row by row, with our numbers beside theirs: ``sources.yaml`` as tables in Markdown."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.results.numbers import number
from moeprobe.results.tables import with_shown_intervals
from moeprobe.runtime.yaml import read_yaml

ROWS = Path(__file__).with_name("sources.yaml")
STATES = ("works", "partly", "not", "nothing to build")
COLUMNS = ("row", "where", "what", "state", "how", "ours", "theirs")
_NUMBER = re.compile(r"\{(\w+)\}")
_NUMBERS = ("value", "ci_low", "ci_high", "sim_low", "sim_high")
_ABOUT = ("file", "decimals")


def rows(source: str) -> list[dict[str, str]]:
    """Return the rows of a source as the file has them, by column."""
    return [dict(zip(COLUMNS, map(str, row), strict=True)) for row in read()["sources"][source]]


def names() -> list[str]:
    """Return what the sources are called."""
    return list(read()["sources"])


def lines(folder: Path, source: str) -> list[str]:
    """Return the table of one source."""
    table = ["| | where | what | | how | ours | theirs |", f"|{'---|' * len(COLUMNS)}"]
    for row in rows(source):
        ours = _NUMBER.sub(lambda match: value(folder, match[1]), row["ours"])
        cells = [*(row[name] for name in COLUMNS[:3]), f"**{row['state']}**", row["how"], ours, row["theirs"]]
        table.append(f"| {' | '.join(cells)} |")
    return table


def counts(folder: Path) -> list[str]:
    """Return how many rows of each source are in which state."""
    table = [f"| | {' | '.join(STATES)} |", f"|{'---|' * (len(STATES) + 1)}"]
    total: Counter[str] = Counter()
    for source in names():
        states = Counter(row["state"] for row in rows(source))
        total += states
        table.append(f"| {source} | {' | '.join(str(states[state]) for state in STATES)} |")
    return [*table, f"| all | {' | '.join(str(total[state]) for state in STATES)} |"]


def value(folder: Path, name: str) -> str:
    """Return the numbers of a lookup, in the order of the files, each with its interval."""
    about = read()["numbers"][name]
    selected = []
    missing = {column: [""] for column in _NUMBERS}
    for path in sorted(folder.glob(about["file"])):
        table = pd.read_csv(path, keep_default_na=False, na_values=missing)
        for column, wanted in about.items():
            if column not in _ABOUT:
                table = table[_same(table[column], wanted)]
        is_of_trainings = path.parent.name == "trainings"
        is_signed = is_of_trainings or "comparison" in path.name or path.name in ("gaps.csv", "contrasts.csv")
        if is_of_trainings:  # what holds for all layers at once
            table = with_shown_intervals(table)
        selected.append(table.assign(signed=is_signed))
    found = pd.concat(selected)
    if found.empty:
        raise LookupError(f"No number of the reports is {name} of {ROWS.name}: {about}")
    return " · ".join(_cell(row, about.get("decimals", 3)) for row in found.to_dict("records"))


def _same(column: "pd.Series[Any]", wanted: object) -> "pd.Series[bool]":
    if isinstance(wanted, str):
        return column.astype(str) == wanted
    return pd.to_numeric(column, errors="coerce") == wanted


def _cell(row: dict[str, Any], decimals: int) -> str:
    signed = row["signed"] or row.get("kind") == "difference"
    middle, low, high = (
        number(float(row[name]), signed=signed, decimals=decimals) for name in ("value", "ci_low", "ci_high")
    )
    return f"{middle} [{low}, {high}]"


def read() -> dict[str, Any]:
    """Return the file: lookups of numbers, and the rows of each source."""
    return dict(read_yaml(ROWS))
