"""Independent pieces of work in several processes, where a process can be copied as it is (Linux); their memory.

Every piece is computed with one thread of NumPy's linear algebra: threads of several processes would wait for one
another, and the last bits of a sum would depend on how many cores there are. The limit holds for the whole process, so
several threads of Python must not do such work at the same time.
"""

import multiprocessing
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from moeprobe.errors import UserError, option
from moeprobe.runtime.signals import raise_ignored

T = TypeVar("T")

# Each holds a piece in memory.
_MOST = 4
# Loader processes: more than any machine feeds, and fewer than would bring one down.
MOST_WORKERS = 256
# From so many encoded images on, loader processes are worth their start; and the memory that they may want to share.
_MANY_IMAGES, _SHARED_BYTES = 512, 2**30
_SHARED_MEMORY = Path("/dev/shm")


def usable(ranks: int = 1) -> int:
    """Return how many processes to use here: 1 where processes cannot be copied, or this one may start none.

    ``ranks``: processes that share the cores of this machine.
    """
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return max(min(_own_cores(ranks), _MOST), 1)


def _own_cores(ranks: int) -> int:
    """Return how many cores this process has to itself; ``ranks`` processes share those that none is bound to."""
    cores = os.sched_getaffinity(0)
    try:
        around = os.sched_getaffinity(os.getppid())
    except OSError:
        around = cores
    # A launcher that gives each rank cores of its own has divided already.
    return len(cores) if cores < around else len(cores) // ranks


def loader_processes(workers: int | None, encoded_images: int, *, batch_bytes: int, ranks: int = 1) -> int:
    """Return how many processes load a run; None = so many that a device need not wait for decoding.

    Args:
        workers: as the user says.
        encoded_images: of the run, those that are decoded.
        batch_bytes: of the pixels of a batch, all views together.
        ranks: processes that share the cores and the memory of this machine.
    """
    if workers is not None:
        return workers
    # Where torch does not copy this process, a script without a guard of its main part would be run again by each.
    is_copied = _start_method() == "fork"
    if encoded_images < _MANY_IMAGES or not is_copied or not _SHARED_MEMORY.exists():
        return 0
    # Containers often have too little for a batch of images.
    free = shutil.disk_usage(_SHARED_MEMORY).free // ranks
    # Each loads two ahead; some are in use, or on their way.
    fitting = (free // max(batch_bytes, 1) - 4) // 2
    return max(min(usable(ranks) - 1, fitting), 0) if free >= _SHARED_BYTES else 0


def _start_method() -> str:
    """Return how Python starts processes, without making the choice final."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


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
            raise_ignored()
            yield _receive(started[piece % processes][1])
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

    def run_limited(piece: int) -> T:
        with libraries.limit(limits=1, user_api="blas"):
            return work(piece)

    return run_limited


def _receive(receiver: Connection) -> Any:
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


# That of the CPU's allocator, of MPS and of cuBLAS, which have different words for it; CUDA has a class of its own.
_SAID = ("can't allocate memory", "MPS backend out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# What torch asks when it takes memory of the CPU for the first time.
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def ask_for_huge_pages() -> None:
    """Have large tensors lie on huge pages, where Linux gives them to those who ask, unless the user decided already.

    To be called before torch takes memory. Gradients of many experts are made at every step; to get them in pages of
    4 KiB can take longer than to compute them.
    """
    os.environ.setdefault(HUGE_PAGES, "1")


def huge_pages_asked() -> bool:
    """Return whether torch asks for huge pages."""
    return os.environ.get(HUGE_PAGES) == "1"


def largest_resident() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says on Linux begins with the memory of the process that started this one.
        return int(status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) / 1024
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 1024)


def ran_out(error: BaseException) -> bool:
    """Return whether memory ran out, of the machine or of the device; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)


def without_workers(reason: str) -> UserError:
    """Return a message for loader processes that cannot share memory."""
    return UserError(
        f"Loader processes cannot hand over images through shared memory (/dev/shm) here: {reason}. Load without them, "
        f"with {option('workers', 0)} (of a training data.workers=0), or give a container more "
        "(docker run --shm-size=1g)."
    )


def lost_workers(error: RuntimeError) -> UserError | None:
    """Return a message for an error of loader processes that ended, or ran out of shared memory."""
    text = " ".join(str(error).split())
    if match := re.search(r"DataLoader worker \(pid.*|unable to .*(shared memory|/torch_).*", text):
        return without_workers(match[0].rstrip("."))
    return None
