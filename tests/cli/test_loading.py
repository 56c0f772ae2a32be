"""Garbage is looked for less often, and at the end where code of the user ran."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKPOINT = "checkpoints/reference/digits-baseline-k2-seed0"

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


def collections(prepare: str) -> int:
    """How often a process of its own looks for garbage while it loads torch."""
    code = f"""
import gc
from moeprobe.cli.front.environment import collect_rarely
{prepare}
runs = []
gc.callbacks.append(lambda phase, about: runs.append(about) if phase == "start" else None)
import torch
print(len(runs))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.promise
def test_torch_is_loaded_with_few_collections() -> None:
    assert collections("collect_rarely(at_end=False)") < collections("") / 4


@pytest.mark.slow
@pytest.mark.promise
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
