"""The same tree has the same fingerprints twice, and another behavior others."""

from pathlib import Path

import pytest

from benchmarks import fingerprints
from moeprobe.cli.app import app


@pytest.mark.slow
@pytest.mark.promise
def test_the_same_commands_twice() -> None:
    first, second = (fingerprints.fingerprints(["match-ratio"]) for _ in range(2))
    assert len(first) > 200
    assert fingerprints.differences(first, second) == []


def test_differences_name_what_differs() -> None:
    before, after = {"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}
    assert fingerprints.differences(before, after) == ["gone: c", "new: d", "differs: b"]


def test_wrong_inputs_are_of_every_command(tmp_path: Path) -> None:
    lines = list(fingerprints.wrong_inputs(str(tmp_path)))
    assert len(lines) >= 150
    assert {line[0] for line in lines} >= {command.name for command in app.registered_commands}
