"""Tables of cells on the screen."""

from rich.table import Table

from moeprobe.cli.fit import fit
from moeprobe.cli.screen import console
from moeprobe.results.layouts import cells


def on_screen(table: cells.Table, *, title: str, stacked: bool) -> list[Table]:
    """Return a table as one or several that fit the window; ``stacked`` puts intervals below their values."""
    number = len(table.columns) - table.details
    made = Table(title=title, title_justify="left", title_style="bold")
    for column, heading in enumerate(table.columns[:number]):
        numeric = table.numeric_columns[column]
        made.add_column(heading.replace(" − ", " −\n"), justify="right" if numeric else "left")
    previous = None
    for row in table.rows:
        place = [cell.text for cell in row[: table.place]]
        if previous not in (None, place):
            made.add_section()
        said = ["" for _ in place] if place == previous else place
        made.add_row(*said, *(text(cell, stacked=stacked) for cell in row[table.place : number]))
        previous = place
    return fit(made, keys=table.keys, width=console().width)


def text(cell: cells.Cell, *, stacked: bool) -> str:
    """Return the text of a cell, with its interval."""
    line = "\n" if stacked and cell.between.startswith("[") else " "
    return f"{cell.screen or cell.text}{line}{cell.between}".rstrip()
