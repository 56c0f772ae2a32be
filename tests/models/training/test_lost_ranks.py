"""A training by several processes of which one is killed, or hangs."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.commands import PATIENCE
from tests.models.training.parallel.test_sharded_state import assert_close
from tests.models.training.starting import torchrun
from tests.probes.test_ranks import ended, ranks

ASKED = ["train", "--config", "digits-prc", "steps=12", "epochs=null", "schedule.warmup_steps=1"]
ASKED += ["evaluate_every=4", "batch_size=32", "optimizer.name=momentum", "model.expert_dropout=0"]


def until(true: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait until something is true; a process must not end before."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def of_rank(number: int, launcher: int) -> int | None:
    """The process that a launcher started with this rank."""
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for child in children.read_text().split():
            try:
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"RANK=%d" % number in variables:
                return int(child)
    return None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the process of a rank in /proc")
@pytest.mark.parametrize(
    ("parallel", "killed"),
    [("replicas", 1), ("experts", 0), pytest.param("fsdp", 1, marks=pytest.mark.promise)],
)
def test_an_elastic_restart_ends_with_the_same_weights(parallel: str, killed: int, tmp_path: Path) -> None:
    """One of two is killed after the first evaluation; torchrun starts both again, and they go on."""
    folder = tmp_path / "two"
    command = ["--max-restarts=1", "-m", "moeprobe", *ASKED, f"parallel={parallel}", "--folder", str(folder)]
    with torchrun(*command) as launcher:
        until((folder / "state.safetensors").exists, launcher)
        process = of_rank(killed, launcher.pid)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        _, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, errors
    assert "Signal 9 (SIGKILL)" in errors or "exitcode: -9" in errors
    assert not (folder / "state.safetensors").exists() and not (folder / "state").exists()
    alone = tmp_path / "one"
    done = subprocess.run(
        [sys.executable, "-m", "moeprobe", *ASKED, "--folder", str(alone)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert_close(*(load_file(one / "last.safetensors") for one in (alone, folder)))
    rows = [(one / "metrics.csv").read_text().count("\n") for one in (alone, folder)]
    assert rows == [4, 4]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
@pytest.mark.parametrize("parallel", ["replicas", "experts", "fsdp"])
def test_a_process_that_hangs_is_named(parallel: str, tmp_path: Path) -> None:
    """The second of two stands still; the first gives it up after half a minute, and what it has is kept."""
    folder = tmp_path / "run"
    asked = [*ASKED, "steps=100000", f"parallel={parallel}", "--folder", folder]
    with ranks(2, *asked, minutes=0.5) as processes:
        until((folder / "state.safetensors").exists, processes[0])
        processes[1].send_signal(signal.SIGSTOP)
        ((code, _, errors),) = ended(processes[:1])
    assert code == 2, errors
    assert re.search(r"gone or hanging \(counted from 0\): 1\.|Process 1 of 2 .* did not answer", errors), (
        errors
    )
    assert "Traceback" not in errors and (folder / "state.safetensors").exists()
