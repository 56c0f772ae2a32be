"""Several processes, as torchrun starts them, leave the bytes that one process leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moeprobe.runtime.run_files import FINISHED, PARTS, SHARD
from tests.commands import PATIENCE, Trained, names_in, pictures, run
from tests.probes.test_shards import contents

# Commands in processes of their own leave the same bytes.
pytestmark = pytest.mark.resamples


def environments(number: int, *, minutes: float = 30) -> list[dict[str, str]]:
    """The variables that torchrun sets for each of several processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"MOEPROBE_TIMEOUT_MINUTES": str(minutes), "OMP_NUM_THREADS": "1"}
    return [os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]


@contextmanager
def ranks(number: int, *arguments: object, minutes: float = 30) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes with these variables, each with its own output."""
    command = [sys.executable, "-m", "moeprobe", *map(str, arguments)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
        for own in environments(number, minutes=minutes)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


@pytest.fixture(scope="module")
def asked(trained: Trained) -> list[Any]:
    return ["noise-sweep", *trained.values(), "--limit", "40", "--batch-size", "8", "--sigmas", "0,0.1"]


@pytest.fixture(scope="module")
def alone(asked: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "sweep"
    with pictures():
        assert run(*asked, "--out", out).exit_code == 0
    return out


@pytest.mark.slow
@pytest.mark.promise
def test_torchrun_leaves_the_bytes_of_one_process(asked: list[Any], alone: Path, tmp_path: Path) -> None:
    """Five batches over two processes: shards are uneven."""
    out = tmp_path / "sweep"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "moeprobe", *map(str, asked), "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["out"] == str(out)
    assert contents(out) == contents(alone)
    assert names_in(out) == names_in(alone)
    shards = json.loads((out / FINISHED).read_bytes())["shards"]
    assert [(one["shard"], one["images"]) for one in shards] == [("1/2", 16), ("2/2", 24)]


@pytest.mark.slow
@pytest.mark.promise
def test_without_a_folder_the_first_prints(trained: Trained) -> None:
    with ranks(2, "confidence", trained["prc"], "--limit", "24", "--batch-size", "8", "--json") as processes:
        first, second = ended(processes)
    assert first[0] == second[0] == 0, (first, second)
    whole = json.loads(
        run("confidence", trained["prc"], "--limit", "24", "--batch-size", "8", "--json").stdout
    )
    assert json.loads(first[1])["table"] == whole["table"]
    assert second[1] == ""


@pytest.mark.slow
@pytest.mark.promise
def test_a_mistake_is_said_once(trained: Trained, tmp_path: Path) -> None:
    with ranks(
        2, "confidence", trained["prc"], "--data", "folder:nowhere", "--out", tmp_path / "x"
    ) as processes:
        results = ended(processes)
    assert [code for code, _, _ in results] == [2, 2]
    with ranks(2, "confidence", trained["prc"], "--split", "train", "--layers", "blocks.9") as processes:
        results += ended(processes)
    assert all("Traceback" not in errors for _, _, errors in results)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.promise
def test_a_killed_process_is_named_and_the_run_goes_on(asked: list[Any], alone: Path, tmp_path: Path) -> None:
    """The second process is killed after its first part file; what it had is kept, and the whole run is the same."""
    out = tmp_path / "sweep"
    with ranks(2, *asked, "--out", out, minutes=0.5) as processes:
        deadline = time.monotonic() + PATIENCE
        while processes[1].poll() is None and not list(out.glob(f"shards/2-of-2/{PARTS}/*.parquet")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGKILL)
        first, second = ended(processes)
    assert second[0] == -signal.SIGKILL
    if first[0] != 0:  # it was killed before it had measured all
        assert first[0] == 2
        assert "Process 1 of 2 (counted from 0) did not answer for 0.5 minutes" in first[2]
        assert not (out / FINISHED).exists()
        kept = {path.name: path.stat().st_mtime_ns for path in out.glob(f"shards/1-of-2/{PARTS}/*.parquet")}
        assert kept and (out / "shards/1-of-2" / SHARD).exists()
        with ranks(2, *asked, "--out", out) as processes:
            assert [code for code, _, _ in ended(processes)] == [0, 0]
    assert contents(out) == contents(alone)
    assert names_in(out) == names_in(alone)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is a whole number; got 'two'"),
        ({"MOEPROBE_TIMEOUT_MINUTES": "-1"}, "MOEPROBE_TIMEOUT_MINUTES is a positive number"),
    ],
)
def test_wrong_variables_are_refused(
    variables: dict[str, str], said: str, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} | variables
    for name, value in both.items():
        monkeypatch.setenv(name, value)
    result = run("confidence", trained["prc"])
    assert result.exit_code == 2 and said in result.stderr
    assert (
        "take their own shards" in run("confidence", trained["prc"], "--shard", "1/2").stderr or "two" in said
    )
