"""A study takes one process: one of several that torchrun started says so before it locks or writes anything."""

import os
from pathlib import Path

import pytest

from tests.commands import Trained, refused, sentence, shell

ONE_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_an_audit(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shell("audit", trained["prc"], "--minutes", 0.1, "--out", out, env=os.environ | ONE_OF_TWO)
    assert done.returncode == 2
    assert "moeprobe audit takes one process, and 2 were started" in sentence(done)
    assert not out.exists()


@pytest.mark.parametrize(
    "command",
    ["paper", "compare", "report", "merge", "curves", "trace coverage", "trace align", "correspond"],
)
def test_every_other(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in ONE_OF_TWO.items():
        monkeypatch.setenv(name, value)
    own = {"correspond": ["a", "--view", "random_crop"], "trace coverage": ["a"]}
    given = own.get(command, ["a", "b"])
    assert f"moeprobe {command} takes one process" in refused(*command.split(), *given, "--out", "out")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "takes one process" not in refused(*command.split(), *given, "--out", "out")
