"""The collector of garbage rests while modules are loaded, and is as it was afterwards."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from moeprobe.cli.loading import loading

SEEN = """
import gc, sys
from moeprobe.cli import loading
{prepare}
runs = []
gc.callbacks.append(lambda phase, about: runs.append(about) if phase == "start" else None)
import torch
print(len(runs), gc.isenabled(), gc.get_freeze_count() > 100_000, torch.zeros(1).item(),
      any(type(one).__module__ == loading.__name__ for one in sys.meta_path))
"""

PLUGIN = """
from moeprobe.models.training.objectives.base import Objective

class Mine(Objective):
    'Nothing is asked of it.'

    needs_pairs = False

    def terms(self, *_):
        return log

log = open("log.txt", "w")
log.write("seen")
"""


def seen(prepare: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SEEN.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_torch_is_loaded_without_a_collection() -> None:
    assert seen("loading.prepare()") == ["0", "True", "True", "0.0", "False"]


def test_the_library_leaves_the_collector_alone() -> None:
    runs, *others = seen("")
    assert int(runs) > 0 and others == ["True", "False", "0.0", "False"]


def broken() -> None:
    with loading():
        assert not gc.isenabled()
        raise ImportError("broken")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ImportError, match="broken"):
            broken()
        assert gc.isenabled() is enabled
    finally:
        gc.unfreeze()
        (gc.enable if was else gc.disable)()


def test_what_a_plug_in_leaves_open_is_written(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    subprocess.run(
        [sys.executable, "-m", "moeprobe", "--plugins", str(plugin), "--version"], cwd=tmp_path, check=True
    )
    assert (tmp_path / "log.txt").read_text() == "seen"
