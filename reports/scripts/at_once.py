"""Several folders at once: each in a process of its own, with one thread.

The work uses torch, so processes are started afresh, not forked as by ``moeprobe.runtime.processes.spread``.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def each(work: Callable[[str], None], names: Sequence[str]) -> None:
    """Do some work for each name, in as many processes as there are cores; ``work`` is a function of a module."""
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes that start now read it
    processes = max(1, min(len(names), os.cpu_count() or 1))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for _ in pool.map(work, names):
            pass
