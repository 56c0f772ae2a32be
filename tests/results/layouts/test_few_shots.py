"""Few-shot accuracy reads the same in the terminal and in a report."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.table import Table as Rich

from moeprobe.cli.front import show
from moeprobe.inputs.modality import IMAGE
from moeprobe.results.folder import Result
from moeprobe.results.layouts.along_severity import few_shots_table
from moeprobe.results.tables import frame
from moeprobe.runtime.files import write_csv
from moeprobe.studies.report.reading import read_runs
from moeprobe.studies.report.selection import short_tables
from tests.results.layouts.rendering import on_page, on_screen, same
from tests.studies.report.making import frame_of_differences, minus, row, sidecar, write_rows


def measured(names: str) -> Result:
    """Two numbers of shots and three draws of each; the second checkpoint is higher by 0.1."""

    def rows(name: str, *, higher: float, **more: Any) -> list[dict[str, Any]]:
        return [
            row(name, ("", "", f"fewshot_accuracy{end}", null), (value + higher, value - 0.01, value + 0.2),
                severity=shots, view="clean", draw=draw, **more)
            for shots in (1.0, 10.0)
            for draw in (None, 1, 2, 3)
            for end, null, base in (("", "", 0.5), ("_chance", "pooled", 0.1), ("_kappa", "pooled", 0.4))
            for value in [base + 0.01 * (draw or 0)]
        ]  # fmt: skip

    table = [one for place, name in enumerate(names) for one in rows(name, higher=0.1 * place)]
    differences = [
        one | dict(zip(("value", "ci_low", "ci_high"), minus((0.1, 0, 0), (0.0, 0, 0)), strict=True))
        for name in names[1:]
        for one in rows(name, higher=0.0, reference=names[0])
    ]
    compared = frame_of_differences(differences) if differences else None
    return Result(frame(table), compared, pa.table({}), sidecar("fewshot", names, request={"draws": 3}))


@pytest.mark.parametrize("names", ["a", "ab"])
def test_the_terminal_and_a_report_show_the_same(names: str, tmp_path: Path) -> None:
    found = measured(names)
    folder = write_rows(tmp_path / "run", "fewshot", [], checkpoints=names)
    write_csv(folder / "table.csv", found.table)
    if found.comparison is not None:
        write_csv(folder / "comparison.csv", found.comparison)
    (run,) = read_runs([folder])
    (page,) = short_tables(run)
    verdict, *tables, note = show.few_shots(found)
    screen = [part for part in tables if isinstance(part, Rich)]
    assert same(on_screen(screen), on_page([page]))
    assert [str(part.title) for part in screen] == [page.caption] and page.note == note
    assert "With 10 shots, the most of the run" in str(verdict)
    assert "accuracy, by chance, κ: 360 images, 360 trials" in note
    assert page.caption == "Few-shot accuracy of frozen features, 3 draws of the training images"


def test_single_draws_go_from_the_lowest_to_the_highest() -> None:
    found = measured("ab")
    table = few_shots_table(found.table, found.comparison, modality=IMAGE)
    assert table is not None
    assert list(table.columns) == ["checkpoint", "shots", "accuracy", "by chance", "κ", "single draws"]
    assert [line[0].text for line in table.rows] == ["a", "a", "b", "b", "b − a", "b − a"]
    assert table.rows[0][-1].text == "0.510 to 0.530" and table.rows[-1][-1].text == "+0.100"
