"""What stands in the cells of a table, as the terminal and as a page show it."""

import html
import re
from collections.abc import Sequence

from rich.table import Table

from moeprobe.results.layouts import cells
from moeprobe.results.layouts.page import fragment

Cells = list[list[str]]


def on_screen(tables: Sequence[Table]) -> Cells:
    """The headings and the lines of all tables; what a line shares with the one before is not said again."""
    found = []
    for table in tables:
        found.append([str(column.header).replace("−\n", "− ") for column in table.columns])
        columns = [[str(cell) for cell in column.cells] for column in table.columns]
        found += [list(line) for line in zip(*columns, strict=True)]
    return found


def on_page(tables: Sequence[cells.Table]) -> Cells:
    """The headings and the lines of all tables."""
    lines = re.findall(r"<tr>(.*?)</tr>", fragment("", tables), re.S)
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.S)]
        for line in lines
    ]


def same(screen: Cells, page: Cells) -> bool:
    """Whether both show the same cells, but for what the terminal says once."""
    return [len(line) for line in screen] == [len(line) for line in page] and all(
        one in ("", other)
        for mine, theirs in zip(screen, page, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    )
