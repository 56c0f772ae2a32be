"""Tables that fit a window: names fold, numbers are never cut, and what still does not fit goes into another table."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Column, Table

# A name may be folded to this many characters, and a heading of numbers to fewer.
_NAME, _HEADING = 12, 8
# Width of a column in addition to its text: a space on either side and a border.
_AROUND = 3


def fit(table: Table, *, keys: int, width: int) -> list[Table]:
    """Return a table as one or several that fit ``width`` characters.

    Args:
        table: cells and headings are text.
        keys: how many columns, from the first one on, identify a line; they are in every part.
        width: of the window.
    """
    first, rest = table.columns[:keys], table.columns[keys:]
    least = [*(min(_longest_word(column), _NAME) for column in first), *map(_longest_word, rest)]
    space = width - 1
    parts: list[list[int]] = [[]]
    for number in range(keys, keys + len(rest)):
        if parts[-1] and _taken([*least[:keys], *(least[i] for i in [*parts[-1], number])]) > space:
            parts.append([])
        parts[-1].append(number)
    return [_part(table, [*range(keys), *columns], least, space) for columns in parts]


def _part(table: Table, columns: Sequence[int], least: Sequence[int], space: int) -> Table:
    """Return some columns of a table, as wide as they need or as there is room for, the narrowest growing first."""
    widths = {number: least[number] for number in columns}
    for headed in (False, True):  # what is in the cells first
        wanted = {number: _longest_line(table.columns[number], headed=headed) for number in columns}
        while _taken(list(widths.values())) < space:
            growing = [number for number in columns if widths[number] < wanted[number]]
            if not growing:
                break
            widths[min(growing, key=widths.__getitem__)] += 1
    part = Table(title=table.title, title_justify=table.title_justify, title_style=table.title_style)
    for number, width in widths.items():
        column = table.columns[number]
        part.add_column(column.header, justify=column.justify, overflow="fold", width=width)
    for line, cells in enumerate(zip(*(table.columns[number].cells for number in columns), strict=True)):
        part.add_row(*cells, end_section=table.rows[line].end_section)
    return part


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _AROUND * len(widths)


def _longest_word(column: Column) -> int:
    """Return the width of a column's longest word; a heading may be folded, as long as something of it is read."""
    words = [word for cell in column.cells for word in str(cell).split()]
    heading = [min(cell_len(word), _HEADING) for word in str(column.header).split()]
    return max([*map(cell_len, words), *heading], default=1)


def _longest_line(column: Column, *, headed: bool) -> int:
    cells = [column.header, *column.cells] if headed else column.cells
    lines = [line for cell in cells for line in str(cell).splitlines()]
    return max(map(cell_len, lines), default=1)
