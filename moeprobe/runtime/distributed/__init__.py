"""Processes that work on one thing together, as ``torchrun`` starts them: the only user of ``torch.distributed``.

Processes are numbered by their rank, from 0. What they tell one another in words goes through the store that they meet
at, so that one which fails, ends or hangs is named (``ranks``); sums of tensors go through a process group (gloo on
CPUs, NCCL on CUDA). ``mesh`` sends rows from process to process, ``sharded`` has parameters of which each holds a part.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from moeprobe.errors import FinishedError, UserError
from moeprobe.runtime.distributed.ranks import Alone, OtherFailedError, Ranks, patience

__all__ = [
    "Alone",
    "OtherFailedError",
    "Ranks",
    "ending",
    "launched",
    "own_device",
    "patience",
    "rank",
    "together",
]

# What torchrun, and the operators of Kubernetes, set.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process was started as one of several."""
    return _placed() and _number("WORLD_SIZE") > 1


def _placed() -> bool:
    return all(os.environ.get(name) for name in _VARIABLES)


def rank() -> int:
    """Return the number of this process; 0 where it is the only one."""
    return _number("RANK") if launched() else 0


def _number(name: str) -> int:
    try:
        value = int(os.environ[name])
    except ValueError:
        value = -1
    if value < 0:
        raise UserError(f"The environment variable {name} is a whole number; got {os.environ[name]!r}.")
    return value


def own_device(name: str) -> str:
    """Return the name of this process' device: of several CUDA devices of a machine each process has its own."""
    import torch

    if not launched() or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{int(os.environ.get('LOCAL_RANK', rank())) % torch.cuda.device_count()}"


@contextmanager
def ending() -> Iterator[None]:
    """End a process that is one of several with the block, and do not take its interpreter down.

    A thread of gloo gives the tensors of a message back under the interpreter's lock, some time after the message has
    come. A thread that asks for the lock while the interpreter is being taken down is ended by Python, which C++
    answers with ``std::terminate``: the process is aborted though all its work is done. ``destroy_process_group``
    does not wait for such threads where a ``DeviceMesh`` was made, as torch keeps it until the end.
    """
    if not _placed():
        yield
        return
    code: int | str | None = 0
    try:
        yield
    except SystemExit as error:
        code = error.code
    except Exception:  # a bug, said as Python would
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it is gone
            stream.flush()
    os._exit(code or 0)


@contextmanager
def together() -> Iterator[Ranks]:
    """Meet the other processes; what fails in the block is told to them.

    Raises:
        UserError: they cannot be met.
    """
    import torch.distributed as dist

    size, number = _number("WORLD_SIZE"), _number("RANK")
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", number, size, timeout=patience())))
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"Process {number} of {size} could not meet the others at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({str(error).splitlines()[0]})."
        ) from error
    # torchrun keeps its store when it starts all once more, with what those before had said there.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    ranks = Ranks(dist.PrefixStore(f"moeprobe/{attempt}", store), number, size)
    try:
        yield ranks
    except OtherFailedError:
        raise
    except FinishedError:
        ranks.leave()
        raise
    except UserError as error:
        if not ranks.fail(error.sentence):
            raise OtherFailedError(error.sentence) from error
        raise
    ranks.leave()
    if dist.is_initialized():
        dist.destroy_process_group()
