"""Tables as a page shows them."""

from moeprobe.results.layouts.cells import Cell, Table


def test_a_column_of_numbers_holds_nothing_else() -> None:
    """Gaps are left aside, and a dash is a number that does not exist; words and emptiness are no numbers."""
    number, dash, word, gap = Cell("0.5", key=0.5), Cell("–"), Cell("prc"), Cell("")
    rows = [[number, dash, word, gap, number], [gap, number, word, gap, word]]
    assert Table("of all kinds", "abcde", rows).numeric_columns == [True, True, False, False, False]
    assert Table("without rows", "ab", []).numeric_columns == [False, False]
