"""A run whose processes hold parts of its state goes on with another number of them, and ends as it would have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from moeprobe.errors import UserError
from tests.models.training.parallel.stopped import go_on
from tests.models.training.starting import by_processes

# Of float32 after eight steps of which some are made by two processes: sums in another order.
TOLERANCE = 2e-5


def train(folder: Path, *, processes: int, stop: int | None = None, **changes: Any) -> None:
    """Train by some processes, until an evaluation or the end."""
    folder.mkdir(exist_ok=True)
    if processes == 1:
        go_on(folder, stop=stop, **changes)
        return
    by_processes("stopped", str(folder), json.dumps({"stop": stop} | changes), number=processes)


def weights(folder: Path) -> dict[str, np.ndarray]:
    """What a finished run leaves, of which nothing is left over."""
    assert (folder / "finished.json").exists()
    assert not (folder / "state.safetensors").exists() and not (folder / "state").exists()
    return load_file(folder / "last.safetensors")


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, wanted in one.items():
        assert wanted.shape == other[name].shape
        assert np.abs(other[name] - wanted).max() <= TOLERANCE * max(np.abs(wanted).max(), 1e-3), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("whole")
    go_on(folder, stop=None)
    return weights(folder)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["experts", "fsdp"])
@pytest.mark.parametrize(("before", "after"), [pytest.param(2, 1, marks=pytest.mark.promise), (1, 2), (2, 2)])
def test_another_number_of_processes_goes_on(
    before: int, after: int, parallel: str, uninterrupted: dict[str, np.ndarray], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(folder, processes=before, stop=4, parallel=parallel)
    parts = sorted((folder / "state/4").iterdir())
    assert len(parts) == before and [one.name for one in (folder / "state").iterdir()] == ["4"]
    train(folder, processes=after, parallel=parallel)
    assert_close(uninterrupted, weights(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "processes", "after"),
    [("replicas", 1, "fsdp"), ("experts", 1, "fsdp"), ("fsdp", 2, "replicas")],
)
def test_another_layout_goes_on(
    before: str, processes: int, after: str, uninterrupted: dict[str, np.ndarray], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(folder, processes=processes, stop=4, parallel=before)
    train(folder, processes=3 - processes, parallel=after)
    assert_close(uninterrupted, weights(folder))


def test_the_comparison_sees_a_small_mistake(uninterrupted: dict[str, np.ndarray]) -> None:
    with pytest.raises(AssertionError):
        assert_close(uninterrupted, {name: one * (1 + 1e-4) for name, one in uninterrupted.items()})


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of one process that stopped with its state in parts."""
    train(tmp_path / "run", processes=1, stop=4, parallel="experts")
    return tmp_path / "run"


def test_a_state_goes_on_exactly_with_as_many(stopped: Path, tmp_path: Path) -> None:
    train(stopped, processes=1, parallel="experts")
    train(tmp_path / "whole", processes=1, parallel="experts")
    left, whole = weights(stopped), weights(tmp_path / "whole")
    assert all(np.array_equal(left[name], one) for name, one in whole.items())


def test_damaged_parts_are_refused(stopped: Path) -> None:
    part = next((stopped / "state/4").iterdir())
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"The parts of a state in .* cannot be written or read"):
        go_on(stopped, stop=None, parallel="experts")
    part.unlink()
    with pytest.raises(UserError, match=r"The parts of a state in .* are gone"):
        go_on(stopped, stop=None, parallel="experts")
