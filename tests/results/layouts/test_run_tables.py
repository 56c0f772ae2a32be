"""What the terminal and reports show of a run is laid out once."""

import re

from rich.table import Table as Rich

from moeprobe.cli.front import tables
from moeprobe.inputs.regions import REGIONS
from moeprobe.results.folder import Result
from moeprobe.results.layouts.cells import Table
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.selection import short_tables
from tests.cli.test_summary_output import cells, result


def swept() -> Result:
    """A sweep of one layer, with what the patches show and the noise floor."""
    numbers = {
        ("blocks.1", tokens, metric, null, severity): (value - severity, value - 0.02, value + 0.02)
        for tokens in ("patch", *REGIONS)
        for metric, null, value in (("top1_match", "", 0.8), ("top1_match_kappa", "pooled", 0.7))
        for severity in (0.05, 0.1)
    }
    return result("sweep", numbers | {("", "", "accuracy", "", 0.1): (0.9, 0.85, 0.95)})


def on_page(found: Result) -> list[Table]:
    """What a report shows, where empty cells are empty texts."""
    empty = dict.fromkeys(("expert", "expert_b", "class", "draw"), "")
    assert found.comparison is not None
    run = Run(
        label="",
        sidecar=found.sidecar,
        table=found.table.assign(**empty),
        comparison=found.comparison.assign(**empty),
        csvs={},
        files={},
        pictures=[],
        frames={},
    )
    return short_tables(run)


def said(text: str) -> list[str]:
    """The values with their intervals, in their order."""
    return re.findall(r"[+-]?\d\.\d{3,5}\s\[[^]]+\]", text)


def test_both_show_the_same_values() -> None:
    found = swept()
    page = on_page(found)
    screen = tables.along_severity(found, title="noise")
    assert [
        table.caption for table in page if "region" in table.caption or "patch shows" in table.caption
    ] == ["blocks.1, by what the patch shows"]
    assert any(str(table.title).endswith("blocks.1, by what the patch shows") for table in screen)
    values = [
        f"{cell.text} {cell.between}" for table in page for row in table.rows for cell in row if cell.between
    ]
    assert sorted(values) == sorted(text.replace("\n", " ") for text in said(cells([*screen])))


def test_a_terminal_leaves_out_what_numbers_rest_on() -> None:
    found = result("match-ratio", {("blocks.1", "patch", "top1_match", "", None): (0.4, 0.38, 0.42)})
    (page,) = on_page(found)
    (screen,) = tables.side_by_side(found, title="match")
    assert isinstance(screen, Rich)
    headings = [str(column.header).replace("\n", " ") for column in screen.columns]
    assert [*headings, "images", "trials"] == list(page.columns)
