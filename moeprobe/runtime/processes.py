"""Independent pieces of work in several processes, where a process can be copied as it is (Linux).

Every piece is computed with one thread of NumPy's linear algebra: threads of several processes would wait for one
another, and the last bits of a sum would depend on how many cores there are. The limit holds for the whole process, so
several threads of Python must not do such work at the same time.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from moeprobe.errors import UserError

T = TypeVar("T")

# Each holds a piece in memory.
_MOST = 4
# Loader processes: more than any machine feeds, and fewer than would bring one down.
MOST_WORKERS = 256


def usable() -> int:
    """Return how many processes to use here: 1 where processes cannot be copied, or this one may start none."""
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST)


def spread(work: Callable[[int], T], pieces: int, *, processes: int) -> Iterator[T]:
    """Yield ``work(0)``, ``work(1)``, … in order, computed in so many processes; in this one where it is one.

    What ``work`` returns and raises must be picklable; it must not use torch, whose threads are not copied.

    Raises:
        UserError: a process was ended from outside.
    """
    processes = min(processes, pieces)
    work = _in_one_thread(work)
    if processes < 2:
        yield from map(work, range(pieces))
        return
    context = multiprocessing.get_context("fork")
    started: list[tuple[Any, Connection]] = []
    try:
        for number in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            share = range(number, pieces, processes)
            process = context.Process(target=_run, args=(work, share, sender, receiver), daemon=True)
            process.start()
            sender.close()
            started.append((process, receiver))
        for piece in range(pieces):
            yield _received(started[piece % processes][1])
    finally:
        for process, receiver in started:
            process.terminate()
            process.join()
            receiver.close()


def _in_one_thread(work: Callable[[int], T]) -> Callable[[int], T]:
    """Return what does the same work with one thread of linear algebra."""
    from threadpoolctl import (
        ThreadpoolController,  # takes a while to load, and most commands compute no statistics
    )

    libraries = ThreadpoolController()

    def limited(piece: int) -> T:
        with libraries.limit(limits=1, user_api="blas"):
            return work(piece)

    return limited


def _received(receiver: Connection) -> Any:
    try:
        returned, error = receiver.recv()
    except EOFError:
        raise UserError(
            "A process that computed statistics was ended from outside, probably as memory ran out; free some memory, "
            "and give the command again."
        ) from None
    if error is not None:
        raise error
    return returned


def _run(
    work: Callable[[int], object], share: Iterable[int], sender: Connection, receiver: Connection
) -> None:
    """Send the results of some pieces, piece by piece."""
    # An interruption ends the process that started this one, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    # Without a copy of it here, sending fails when nobody receives any more.
    receiver.close()
    try:
        for piece in share:
            try:
                sent: tuple[object, Exception | None] = (work(piece), None)
            except Exception as error:
                sent = (None, error)
            sender.send(sent)
            if sent[1] is not None:
                return
    except BrokenPipeError:
        return
