"""The collector of garbage rests while modules are loaded, and is as it was afterwards."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moeprobe.cli.front.loading import loading

ROOT = Path(__file__).parents[2]
CHECKPOINT = "checkpoints/reference/digits-baseline-k2-seed0"

SEEN = """
import gc, importlib.util
from moeprobe.cli.front import loading
{prepare}
importlib.util.find_spec("torch")  # looked for, not loaded
runs = []
gc.callbacks.append(lambda phase, about: runs.append(about) if phase == "start" else None)
import torch
print(len(runs), gc.isenabled(), gc.get_freeze_count() > 100_000, torch.zeros(1).item())
"""

PLUGIN = """
from moeprobe.models.training.objectives.base import Objective
{before}

class Mine(Objective):
    'Nothing is asked of it.'

    needs_pairs = False
    {inside}

    def terms(self, *_):
        return log

{after}
"""
WRITE = "log = open('log.txt', 'w'); log.write('seen')"


def seen(prepare: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SEEN.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_torch_is_loaded_without_a_collection() -> None:
    assert seen("loading.load_torch_so()") == ["0", "True", "True", "0.0"]


def test_the_library_leaves_the_collector_alone() -> None:
    runs, *others = seen("")
    assert int(runs) > 0 and others == ["True", "False", "0.0"]


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


@pytest.mark.parametrize(
    ("before", "inside", "after"),
    [("", "", WRITE), ("", WRITE, ""), ("from helper import log", "", "")],
    ids=["global", "class attribute", "module of its own"],
)
def test_what_a_plug_in_leaves_open_is_written(tmp_path: Path, before: str, inside: str, after: str) -> None:
    (tmp_path / "helper.py").write_text(f"{WRITE}\ndef of(): return log\n")
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN.format(before=before, inside=inside, after=after))
    command = [sys.executable, "-m", "moeprobe", "--plugins", str(plugin), "inspect", str(ROOT / CHECKPOINT)]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert (tmp_path / "log.txt").read_text() == "seen"
