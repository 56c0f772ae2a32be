"""No name out of a file steers the terminal of whoever reads a table, a progress bar or a report."""

import io
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.screen import Screen
from moeprobe.results.layouts import cells
from moeprobe.results.layouts.page import fragment
from moeprobe.results.showing import Figures, one_line
from moeprobe.runtime.characters import harmless
from moeprobe.studies.report.render import markdown
from tests.commands import run
from tests.security.slots import CHECKPOINT

TITLE = "a\x1b]0;owned\x07b"
STEERING = [TITLE, "c\x9b2Jd", "e\x1b[31mf", "g\u202eh", "i\rj", "k\x08l", "m\x7fn"]


@pytest.mark.parametrize("name", STEERING)
def test_tables_sentences_and_bars(name: str) -> None:
    stream = io.StringIO()
    screen = Screen(file=stream, width=60, force_terminal=True, color_system=None)
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    table.add_row(Text(name))
    screen.print(table, name, Text(name))
    with Progress(TextColumn("{task.description}"), console=screen) as bar:
        bar.add_task(name, total=1)
    shown = stream.getvalue()
    # What rich itself writes for the bar: hide and show the cursor, up a line, erase it, back to its start.
    for own in ("\x1b[?25l", "\x1b[?25h", "\x1b[1A", "\x1b[2K", "\r"):
        shown = shown.replace(own, "")
    assert all(one.isprintable() or one == "\n" for one in shown), repr(shown)
    assert repr(name)[1:-1] in shown
    frame = next(line for line in shown.splitlines() if line.startswith("┏"))
    assert {len(line) for line in shown.splitlines() if line[:1] in "┏┃┡│└"} == {len(frame)}


@pytest.mark.parametrize("name", STEERING)
def test_reports(name: str) -> None:
    page = fragment(
        name, [cells.Table(name, [name, "value"], [[cells.TableCell(name), cells.TableCell("1")]], name)]
    )
    for text in (page, markdown(name)):
        assert all(one.isprintable() or one == "\n" for one in text), repr(text)


@pytest.mark.parametrize("name", STEERING)
def test_a_result_in_a_notebook(name: str) -> None:
    for shown in (one_line("Result", {"checkpoints": name}), repr(Figures({name: Figure()}))):
        assert shown.isprintable()


def test_letters_of_any_language_and_spaces_of_any_width_stay() -> None:
    for text in ("κ ± 0.1 −\u202f2", "数字 é ñ\nsecond line", "1\u00a0000"):
        assert harmless(text) == text


def test_a_command_prints_the_name_of_a_checkpoint(tmp_path: Path) -> None:
    named = tmp_path / TITLE
    named.symlink_to(CHECKPOINT)
    result = run("eval", named, "--limit", 4, "--batch-size", 4)
    assert result.exit_code == 0, result.output
    assert "\x1b]" not in result.output and r"a\x1b]0;owned\x07b" in result.output


@pytest.mark.parametrize("name", [*STEERING, "l\ud800m", "κ 数字 é\u202f2"])
def test_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({name: [name]})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {name: [name]}
    assert harmless(printed) == printed
    assert name not in STEERING or name not in printed
    assert "κ" not in name or "κ 数字 é" in printed, "letters of any language stay"


def test_no_command_prints_json_otherwise() -> None:
    for path in (Path(__file__).parents[2] / "moeprobe" / "cli").rglob("*.py"):
        assert path.name == "environment.py" or "json.dumps(" not in path.read_text(encoding="utf-8"), path
