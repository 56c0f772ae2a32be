"""``--help`` lists every command under the heading of what it is about."""

from typing import Any

import pytest
from typer.main import get_command

from moeprobe.cli.app import app
from moeprobe.cli.front.options import PANELS, CommonOptions
from moeprobe.declarations import Panel
from moeprobe.declarations.question import panel_of
from moeprobe.declarations.registry import probes
from moeprobe.probes.noise_sweep import NoiseSweep
from tests.commands import refused, run
from tests.docs.pages import COMMANDS

TOP: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_has_a_heading_and_those_of_a_group_have_too() -> None:
    for commands in (TOP, COMMANDS):
        assert {command.rich_help_panel for command in commands.values()} == set(Panel)


def test_a_probe_is_under_its_own_heading() -> None:
    assert {probe.name: probe.panel for probe in probes()} == {
        probe.name: COMMANDS[probe.name].rich_help_panel for probe in probes()
    }
    assert COMMANDS["match-ratio"].rich_help_panel == Panel.PROBES
    assert COMMANDS["attack"].rich_help_panel == Panel.STRESS


def test_the_help_shows_the_headings_each_once_and_the_commonest_first() -> None:
    text = run("--help").output
    headings = [
        line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭") and "Options" not in line
    ]
    assert headings == [*Panel]
    assert text.index(" demo ") < text.index(" doctor ") < text.index(" match-ratio ") < text.index(" train ")


@pytest.mark.parametrize("panel", ["My own probes", 0])
def test_a_plug_in_that_names_no_heading_is_among_the_probes(panel: object) -> None:
    assert panel_of(type("Mine", (NoiseSweep,), {"panel": panel, "name": "mine"})) is Panel.PROBES


def test_a_model_in_place_of_a_command_is_to_be_recorded() -> None:
    assert "moeprobe trace record checkpoints/demo-prc ..." in refused(
        "trace", "checkpoints/demo-prc", "--out", "traces"
    )


def test_a_mistyped_command_of_a_group_is_no_model() -> None:
    assert "Did you mean 'analyze'?" in run("trace", "anlyze", "a.parquet").output


def test_options_of_a_probe_stand_under_headings_after_its_own() -> None:
    text = run("match-ratio", "--help").output
    headings = [f"─ {name} ─" for name in ("Arguments", "Options", *PANELS)]
    assert sorted(headings, key=text.index) == headings
    assert (
        text.index("─ Options ─") < text.index(" --view ") < text.index("─ Data ─") < text.index(" --limit ")
    )
    assert "<bool>" not in text and "<str>" not in text and "docs/index.md" in text


def test_a_command_with_few_options_has_one_list() -> None:
    text = run("trace", "check", "--help").output
    assert "─ Options ─" in text and "─ Output ─" not in text


def test_every_shared_option_has_a_heading() -> None:
    shared = {parameter.name for parameter in CommonOptions().parameters()}
    assert shared <= {name for names in PANELS.values() for name in names}
