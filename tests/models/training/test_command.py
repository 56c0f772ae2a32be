"""``moeprobe train`` as a process of its own: Ctrl-C, and the same command again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from tests.commands import PATIENCE, run, started, wait_for

CONFIG = """
data: digits
model: {image_size: 16, num_experts: 4, group_images: 4, expert_dropout: 0.1}
objective: {name: prc}
optimizer: {name: adamw, learning_rate: 1e-3, clip_norm: 1.0}
schedule: {name: cosine, warmup_steps: 5}
batch_size: 16
steps: 60
evaluate_every: 6
"""


def train(folder: Path, *more: str) -> list[str]:
    config = folder.parent / "small.yaml"
    config.write_text(CONFIG)
    return ["train", "--config", str(config), "--folder", str(folder), "--device", "cpu", *more]


def start(folder: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Train in a process of its own, on one thread."""
    return started(*train(folder, *more), env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of several threads round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.usefixtures("one_thread")
def test_ctrl_c_and_resume(tmp_path: Path) -> None:
    """Two processes, one cut short and one that goes on, end where a run of this process ends."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with start(cut) as running:
        wait_for(cut / "metrics.csv", running)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert (cut / "state.safetensors").exists() and not (cut / "finished.json").exists()
    lines = len((cut / "metrics.csv").read_text().splitlines())
    assert 1 < lines < 11, "the run was interrupted too late to tell"

    with start(cut, "--resume") as resuming:
        uninterrupted = run(*train(whole))
        assert uninterrupted.exit_code == 0, uninterrupted.output
        _, errors = resuming.communicate(timeout=PATIENCE)
    assert resuming.returncode == 0, errors
    for name in ("last.safetensors", "best.safetensors", "metrics.csv", "config.yaml"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    assert "Finished already" in run(*train(cut)).stdout
