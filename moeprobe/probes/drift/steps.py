"""The steps of a training by the names of its traces."""

import itertools
import re
from collections.abc import Sequence

import pandas as pd

# What the traces are compared with.
FIRST, LAST = "the first", "the last"
_AGAINST = " against "


def steps_of(names: Sequence[str]) -> list[float] | None:
    """Return the number in each name that tells it from the others; None where there is none that grows."""
    numbers = [[int(number) for number in re.findall(r"\d{1,15}", name)] for name in names]
    for column in zip(*numbers, strict=False) if len({len(row) for row in numbers}) == 1 else ():
        if all(number < following for number, following in itertools.pairwise(column)):
            return [float(number) for number in column]
    return None


def view_of(name: str, reference: str) -> str:
    """Return the name in column ``view`` of a trace that is compared with the first or the last."""
    return f"{name}{_AGAINST}{reference}"


def by_step(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table of drift with the columns ``name`` and ``against``."""
    parts = [view.rpartition(_AGAINST) for view in table["view"]]
    return table.assign(name=[name for name, *_ in parts], against=[against for *_, against in parts])
