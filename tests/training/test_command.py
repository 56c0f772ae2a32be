"""``moeprobe train`` as a process of its own: Ctrl-C, and the same command again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFIG = """
data: digits
model: {image_size: 16, num_experts: 4, group_images: 4, expert_dropout: 0.1}
objective: {name: prc}
optimizer: {name: adamw, learning_rate: 1e-3, clip_norm: 1.0}
schedule: {name: cosine, warmup_steps: 5}
batch_size: 16
steps: 300
evaluate_every: 30
"""
PATIENCE = 120


def command(folder: Path, *more: str) -> list[str]:
    config = folder.parent / "small.yaml"
    config.write_text(CONFIG)
    return [
        sys.executable,
        "-m",
        "moeprobe",
        "train",
        "--config",
        str(config),
        "--folder",
        str(folder),
        *more,
    ]


@pytest.mark.slow
def test_ctrl_c_and_resume(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command(whole), check=True, capture_output=True, env=environment, timeout=PATIENCE)

    running = subprocess.Popen(command(cut), stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + PATIENCE
    while not (cut / "metrics.csv").exists() and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.02)
    time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert (cut / "state.safetensors").exists() and not (cut / "finished.json").exists()
    lines = len((cut / "metrics.csv").read_text().splitlines())
    assert 1 < lines < 11, "the run was interrupted too late to tell"

    resumed = subprocess.run(
        command(cut, "--resume"),
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE,
    )
    assert resumed.returncode == 0, resumed.stderr
    for name in ("last.safetensors", "best.safetensors", "metrics.csv", "config.yaml"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    again = subprocess.run(
        command(cut), check=False, capture_output=True, text=True, env=environment, timeout=PATIENCE
    )
    assert again.returncode == 2 and "finished run" in again.stderr
