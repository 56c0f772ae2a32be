"""No window is so narrow that a table cuts a number."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from moeprobe.cli.front import screen as _screen
from moeprobe.cli.front.tables import fit
from tests.commands import Trained, run

CELLS = ["0.354 [0.333, 0.375]", "0.00123\n[-0.00077, +0.00353]", "better (higher)", "1,234 of 5,760"]


def made(columns: int) -> Table:
    table = Table(title="a title", title_style="bold")
    for name in ("layer", "checkpoint"):
        table.add_column(name)
    for number in range(columns):
        table.add_column(f"digits-prc-k2-seed{number} −\ndigits-baseline-k2-seed0", justify="right")
    for line in range(3):
        cells = [CELLS[(line + number) % len(CELLS)] for number in range(columns)]
        table.add_row("blocks.3", "a-checkpoint-with-a-very-long-name-indeed", *cells, end_section=line == 1)
    return table


def printed(tables: list[Table], width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    for table in tables:
        screen.print(table)
    return screen.file.getvalue().splitlines()  # type: ignore[attr-defined]


def is_whole(lines: list[str], width: int) -> bool:
    """Whether every line of every table ends with its border, within the window, and nothing was quoted."""
    rows = [line.rstrip() for line in lines if line[:1] in "│┃┏┡├└"]
    return (
        len(rows) > 4
        and all(len(row) <= width and row[-1] in "│┃┓┩┤┘" for row in rows)
        and "…" not in "".join(lines)
    )


@pytest.mark.parametrize("width", [48, 60, 80, 100, 160, 400])
@pytest.mark.parametrize("columns", [1, 3, 7])
def test_every_word_of_every_value_is_there_whole(width: int, columns: int) -> None:
    table = made(columns)
    lines = printed(fit(table, keys=2, width=width), width)
    assert is_whole(lines, width)
    words = " ".join(lines).replace("│", " ").split()
    for column in table.columns[2:]:
        for cell in column.cells:
            for word in str(cell).split():
                assert word in words
    # Every part says what its lines are about.
    assert "".join(words).count("blocks.3") == 3 * len(fit(table, keys=2, width=width))


def test_a_wide_window_takes_it_in_one_table_of_its_own_width() -> None:
    table = made(2)
    (whole,) = fit(table, keys=2, width=400)
    assert printed([whole], 400) == printed([table], 400)


def test_the_plain_table_would_have_been_cut() -> None:
    assert not is_whole(printed([made(7)], 80), 80)


def test_the_heading_of_a_name_stays_whole() -> None:
    table = Table()
    for name in ("checkpoint", "corruption", *["a metric"] * 4):
        table.add_column(name)
    table.add_row("a-checkpoint-with-a-long-name-indeed", "blur", *["0.425 [0.360, 0.493]"] * 4)
    for width in (120, 160):
        headings = [part.columns[1].header for part in fit(table, keys=2, width=width)]
        assert set(headings) == {"corruption"}
        assert all(
            "corruption" in "".join(printed([part], width)) for part in fit(table, keys=2, width=width)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["match-ratio", "--limit", 20],
        ["confidence", "--limit", 20],
        ["eval", "--limit", 20],
        ["noise-sweep", "--limit", 20, "--sigmas", "0,0.2", "--attribute"],
        ["compare", "--limit", 20],
        ["compare", "--limit", 20, "--probe", "noise-sweep", "--severities", "0.1,0.2"],
        ["discontinuity", "--limit", 2],
        ["overlay", "--count", 1, "--animate", "--severities", "0,0.2", "--layers", "blocks.3"],
    ],
    ids=str,
)
def test_commands_cut_nothing_at_80_columns(
    command: list[object], trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_screen, "PIPE_WIDTH", 80)
    name, *more = command
    if name == "overlay":
        more += ["--out", tmp_path / "out"]
    result = run(name, *trained.values(), *more)
    assert result.exit_code == 0, result.output
    assert is_whole(result.output.splitlines(), 80), result.output
