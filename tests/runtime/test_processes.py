"""Work in several processes: the same results in the same order, errors as they are, and nothing left behind."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from moeprobe.errors import UserError
from moeprobe.runtime.distributed import ranks_here
from moeprobe.runtime.processes import loader_processes, spread

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be copied here"
)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail where a process is left that another test has not left before."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_results_come_in_order(processes: int) -> None:
    base = 10
    found = list(spread(lambda piece: (piece + base, os.getpid()), 7, processes=processes))
    assert [value for value, _ in found] == list(range(10, 17))
    workers = {pid for _, pid in found}
    assert len(workers) == min(processes, 7) and (os.getpid() in workers) == (processes == 1)


@pytest.mark.parametrize("processes", [1, 2])
def test_linear_algebra_takes_one_thread_in_a_piece(processes: int) -> None:
    before = _blas_threads()
    if not before:
        pytest.skip("NumPy's linear algebra is none whose threads can be set (Accelerate)")
    assert list(spread(lambda _: set(_blas_threads()), 3, processes=processes)) == [{1}] * 3
    assert _blas_threads() == before


def _blas_threads() -> list[int]:
    assert np.ones((2, 2)) @ np.ones(2) is not None  # so that it is loaded
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


def test_no_pieces() -> None:
    assert list(spread(lambda piece: piece, 0, processes=2)) == []


def test_an_error_is_that_of_the_piece() -> None:
    def work(piece: int) -> int:
        if piece == 3:
            raise UserError("The third cannot be read.")
        return piece

    results = spread(work, 6, processes=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match="The third cannot be read"):
        next(results)


def test_a_process_that_is_killed_is_a_sentence() -> None:
    def work(piece: int) -> int:
        if piece == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return piece

    with pytest.raises(UserError, match="was ended from outside"):
        list(spread(work, 4, processes=2))


def test_processes_end_when_nobody_wants_more() -> None:
    """More than a pipe holds waits in them."""
    results = spread(lambda piece: bytes(10**6), 50, processes=2)
    assert len(next(results)) == 10**6
    results.close()  # type: ignore[attr-defined]  # a generator


@pytest.mark.parametrize(
    ("images", "free", "cores", "expected"),
    [
        (0, 2**34, 8, 0),
        (100, 2**34, 8, 0),
        (5000, 2**34, 8, 3),
        (5000, 2**34, 2, 1),
        (5000, 2**34, 1, 0),
        (5000, 2**26, 8, 0),
    ],
)
def test_many_encoded_images_are_loaded_in_processes(
    images: int, free: int, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a few, and not where memory to share is as little as Docker gives by default."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: "fork")
    assert loader_processes(None, images, batch_bytes=2**20) == expected
    assert loader_processes(5, images, batch_bytes=2**20) == 5


@pytest.mark.parametrize(("free", "expected"), [(2**30, 0), (2**31, 1), (2**32, 3)])
def test_batches_that_wait_fit_into_shared_memory(
    free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 64 images at seven severities: three processes were seen to fill 1.3 GiB."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: "fork")
    assert loader_processes(None, 5000, batch_bytes=64 * 7 * 3 * 224**2 * 4) == expected


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_processes_that_would_run_the_script_again_are_not_started_unasked(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.14 starts them so."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=2**34))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [method, "fork"])
    assert loader_processes(None, 5000, batch_bytes=2**20) == 0
    assert loader_processes(5, 5000, batch_bytes=2**20) == 5


@pytest.mark.parametrize(
    ("ranks", "cores", "free", "expected"),
    [
        (2, 8, 2**34, 3),
        (4, 8, 2**34, 1),
        (8, 8, 2**34, 0),
        (16, 8, 2**34, 0),
        (2, 64, 2**31, 1),
        (4, 64, 2**31, 0),
    ],
)
def test_processes_of_one_machine_share_its_cores_and_its_memory(
    ranks: int, cores: int, free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: "fork")
    # A batch of which six fit into half of 2 GiB: two ahead of one process, and four in use.
    assert loader_processes(None, 5000, batch_bytes=2**30 // 6, ranks=ranks) == expected
    assert loader_processes(5, 5000, batch_bytes=2**20, ranks=ranks) == 5


def test_cores_that_a_launcher_binds_are_not_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes on eight cores: bound to three of them, then free to use any."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=2**34))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: "fork")
    for bound, expected in ((range(2, 5), 2), (range(8), 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, bound=bound: set(range(8) if pid else bound))
        assert loader_processes(None, 5000, batch_bytes=2**20, ranks=4) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, 1), ({"WORLD_SIZE": "8"}, 8), ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 4)],
)
def test_the_processes_of_this_machine_are_counted(
    variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    launched = {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} | variables if variables else {}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    assert ranks_here() == expected
