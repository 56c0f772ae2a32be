"""Tables of cells as HTML, for reports and notebooks."""

import dataclasses
from collections.abc import Sequence

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moeprobe.results.layouts.cells import Table
from moeprobe.runtime.characters import harmless

_HERE = "moeprobe.results.layouts"
# Lines of a table in a notebook; every number is in ``table``.
_LINES = 60


def environment(package: str = _HERE, *, autoescape: bool) -> Environment:
    """Return the templates of a package, which may import ``table`` of ``table.html.jinja``."""
    return Environment(
        finalize=_harmless,
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(_HERE)]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _harmless(value: object) -> object:
    """Return text for a page; a file's control characters are escaped before HTML's."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def fragment(heading: str, tables: Sequence[Table], *, sentences: Sequence[str] = ()) -> str:
    """Return what a notebook shows of a result: a heading, sentences, and the first lines of each table."""
    template = environment(autoescape=True).get_template("fragment.html.jinja")
    return template.render(
        heading=heading, sentences=sentences, tables=[_beginning(table) for table in tables]
    )


def _beginning(table: Table) -> Table:
    num_omitted = len(table.rows) - _LINES
    if num_omitted <= 0:
        return table
    return dataclasses.replace(
        table, rows=table.rows[:_LINES], note=f"… {num_omitted} more lines. {table.note}".rstrip()
    )
