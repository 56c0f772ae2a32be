"""Processes that hold parts of a state are asked to end: all save theirs after the same step, and go on from there."""

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from moeprobe.runtime.signals import StopRequest, is_waited_for
from tests.commands import PATIENCE
from tests.models.training.starting import torchrun
from tests.models.training.test_lost_ranks import ASKED, until
from tests.probes.test_ranks import ended, ranks

# Long enough that a signal after the first evaluation comes in time.
_LONG = [*ASKED, "steps=14", "evaluate_every=6"]


def saved(folder: Path, errors: str) -> int:
    """The step that was saved, as the first process says: later than an evaluation, and of all processes."""
    found = re.search(r"Step (\d+) of 14 is saved in .*; the same command continues from there\.", errors)
    assert found, errors
    assert [one.name for one in (folder / "state").iterdir()] == [found[1]]
    assert len(list((folder / "state" / found[1]).glob("*.safetensors"))) == 2
    assert not (folder / "finished.json").exists() and "Traceback" not in errors
    return int(found[1])


def finish(folder: Path, *asked: str) -> dict[str, np.ndarray]:
    """Train to the end by two processes; the last weights."""
    with ranks(2, *_LONG, *asked, "--folder", folder) as processes:
        results = ended(processes)
    assert [code for code, _, _ in results] == [0, 0], results
    return load_file(folder / "last.safetensors")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize(
    ("parallel", "number", "to", "code"),
    [("experts", signal.SIGTERM, (0, 1), 143), ("fsdp", signal.SIGINT, (1,), 130)],
)
def test_a_signal_to_all_or_to_one_stops_all_after_the_same_step(
    parallel: str, number: signal.Signals, to: tuple[int, ...], code: int, tmp_path: Path
) -> None:
    folder, asked = tmp_path / "run", f"parallel={parallel}"
    with ranks(2, *_LONG, asked, "--folder", folder) as processes:
        until((folder / "metrics.csv").exists, processes[0])
        for one in to:
            processes[one].send_signal(number)
        results = ended(processes)
    assert [one for one, _, _ in results] == [code, code], results
    assert "is saved" not in results[1][2]
    assert 6 < saved(folder, results[0][2]) < 14
    whole, stopped = finish(tmp_path / "whole", asked), finish(folder, asked)
    assert whole.keys() == stopped.keys()
    assert all(np.array_equal(stopped[name], one) for name, one in whole.items())


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_torchrun_that_is_interrupted_leaves_the_step(tmp_path: Path) -> None:
    """It sends the signal to the loader processes of each process, too."""
    folder = tmp_path / "run"
    with torchrun(
        "-m", "moeprobe", *_LONG, "parallel=fsdp", "data.workers=1", "--folder", str(folder)
    ) as launcher:
        until((folder / "metrics.csv").exists, launcher)
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate(timeout=PATIENCE)
    said = errors.split("Traceback", 1)[0]  # torchrun's own, of the signal that it got
    assert saved(folder, said) > 6


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_request_to_stop_waits_and_does_what_the_signal_did() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with StopRequest(waits=True) as request:
            for number in (signal.SIGTERM, signal.SIGINT):  # together: one request
                assert is_waited_for(number)
                signal.raise_signal(number)
            assert (request.number, heard) == (signal.SIGTERM, [])
            with pytest.raises(KeyboardInterrupt):
                request.acknowledge()
        assert heard == [signal.SIGTERM] and not is_waited_for(signal.SIGTERM)
        with StopRequest(waits=True):
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2  # nobody acknowledged it
        with StopRequest(waits=False):
            signal.raise_signal(signal.SIGTERM)
            assert len(heard) == 3
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_comes_again_later_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("moeprobe.runtime.signals.time.monotonic", lambda: now[0])
    with StopRequest(waits=True) as request:
        signal.raise_signal(signal.SIGINT)
        now[0] += 1
        signal.raise_signal(signal.SIGINT)
        now[0] += 10
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not request.acknowledged


def test_the_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest(waits=True) as request:
            signal.raise_signal(signal.SIGINT)
            assert request.number is None and not is_waited_for(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
