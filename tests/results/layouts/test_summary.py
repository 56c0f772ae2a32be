"""The data frame and the notebook's view of a result are one table, which names things as the terminal does."""

from moeprobe.cli.front import show
from moeprobe.results.layouts.side_by_side import summary
from tests.cli.test_summary_output import cells, match, sweep
from tests.results.layouts.rendering import on_page


def test_both_show_the_same_cells() -> None:
    for found in (match(2), sweep(2)):
        heading, *lines = on_page([summary(found.table, found.comparison)])
        frame = found.summary()
        assert list(frame.columns) == heading and frame.values.tolist() == lines
        assert all(cell in found._repr_html_() for cell in frame["metric"])


def test_a_line_is_where_the_terminal_has_it() -> None:
    found = match(2)
    frame = found.summary()
    assert frame["metric"].tolist() == ["top-1 match", "κ of top-1 match", "load entropy (1 = even)"] * 2
    line = frame[(frame["layer"] == "blocks.1") & (frame["metric"] == "κ of top-1 match")].iloc[0]
    screen = cells(show.side_by_side(found, title="t", full=False))
    assert all(line[name] in screen for name in ("a", "b", "b − a", "layer"))


def test_the_output_is_called_output() -> None:
    assert set(sweep(1).summary()["layer"]) == {"blocks.0", "output"}
