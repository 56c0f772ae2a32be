"""``--help`` lists every command under the heading of what it is about."""

from typing import Any

import pytest
from typer.main import get_command

from moeprobe.cli.app import app
from moeprobe.probes.base import Panel, panel_of
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.probes.registry import probes
from tests.commands import run

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_has_a_heading_and_those_of_a_group_have_too() -> None:
    inner = [one for group in ("import", "export") for one in COMMANDS[group].commands.values()]
    assert {one.rich_help_panel for one in (*COMMANDS.values(), *inner)} == set(Panel)


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
    assert headings == [Panel.STUDIES, Panel.PROBES, Panel.STRESS, Panel.TRACES, Panel.FILES]
    assert text.index(" demo ") < text.index(" match-ratio ") < text.index(" doctor ")


@pytest.mark.parametrize("panel", ["My own probes", 0])
def test_a_plug_in_that_names_no_heading_is_among_the_probes(panel: object) -> None:
    assert panel_of(type("Mine", (NoiseSweep,), {"panel": panel, "name": "mine"})) is Panel.PROBES
