"""Work in several processes: the same results in the same order, errors as they are, and nothing left behind."""

import multiprocessing
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from moeprobe.errors import UserError
from moeprobe.runtime.processes import spread

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
