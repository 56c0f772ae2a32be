"""Cells of tables, on a page and on the screen."""

import pytest
from rich.console import Console

from moeprobe.cli.front import tables
from moeprobe.results.layouts.cells import Table, TableCell, value
from tests.results.layouts.rendering import on_page, on_screen


def test_a_column_of_numbers_holds_nothing_else() -> None:
    """Gaps are left aside, and a dash is a number that does not exist; words and emptiness are no numbers."""
    number, dash, word, gap = TableCell("0.5", key=0.5), TableCell("–"), TableCell("prc"), TableCell("")
    rows = [[number, dash, word, gap, number], [gap, number, word, gap, word]]
    assert Table("of all kinds", "abcde", rows).numeric_columns == [True, True, False, False, False]
    assert Table("without rows", "ab", []).numeric_columns == [False, False]


@pytest.mark.parametrize("stacked", [False, True])
def test_of_how_many_nothing_was_seen_in_a_window_of_any_width(
    monkeypatch: pytest.MonkeyPatch, stacked: bool
) -> None:
    row = {"value": 0.0, "ci_low": 0.0, "ci_high": 0.0009, "flag": "", "interval": "score", "trials": 6372}
    row |= {"metric": "tokens_touched", "null": ""}
    table = Table("of flips", ["layer", "a", "b"], [[TableCell("blocks.1"), value(row), value(row)]], keys=1)
    shown = "0.00000 [0.00000, 0.00090]"
    assert on_page([table])[1][1] == f"{shown} (0 of 6,372)"

    def on_width(width: int) -> str:
        monkeypatch.setattr(tables, "console", lambda: Console(width=width))
        return on_screen(tables.on_screen(table, stacked=stacked))[1][1].replace("\n", " ")

    # In a narrow window the count is a line of its own and makes no column wider.
    assert {on_width(width) for width in (120, 80, 40)} == {f"{shown} (0 of 6,372)"}
