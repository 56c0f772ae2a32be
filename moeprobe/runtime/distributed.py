"""Processes that work on one thing together, as ``torchrun`` starts them: what they say to one another.

Processes are numbered by their rank, from 0. What they tell one another in words goes through the store that they meet
at, so that one which fails, ends or hangs is named (``Ranks``); sums of tensors go through a process group (gloo on
CPUs, NCCL on CUDA). Rows, and parameters of which each holds a part, are for ``models.training.parallel``.
"""

import atexit
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from moeprobe.errors import FinishedError, UserError

if TYPE_CHECKING:
    from torch import Tensor


# Minutes after which a process that does not answer is given up.
_PATIENCE = "MOEPROBE_TIMEOUT_MINUTES"
# Numbers of one message, and seconds in which a process that is there answers.
_MESSAGE, _ANSWER = 2**22, 5.0
# Seconds between looks for a failure, and between looks for an answer.
_FAILED, _LOOK, _SHORTEST, _LONGEST = "failed", 1.0, 0.001, 0.05
# What errors of messages between processes speak of: gloo and NCCL raise plain RuntimeErrors.
_MESSAGES = re.compile("gloo|nccl|Dist[A-Z]|ProcessGroup|Connection|Timed out|Timeout|timeout|socket")


def is_message_error(error: RuntimeError) -> bool:
    """Whether an error is one of messages between processes."""
    return _MESSAGES.search(f"{type(error).__name__}: {error}") is not None


class OtherFailedError(UserError):
    """Another process has failed, and says why itself."""


def patience() -> timedelta:
    """Return how long is waited for another process.

    Raises:
        UserError: the environment variable is no positive number.
    """
    text = os.environ.get(_PATIENCE, "30")
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise UserError(f"The environment variable {_PATIENCE} is a positive number; got {text!r}.")
    return timedelta(minutes=minutes)


class Alone:
    """The only process there is."""

    rank, size = 0, 1

    def exchange(self, what: Any) -> list[Any]:
        """Return what it has to say."""
        return [what]

    def total(self, tensor: "Tensor") -> "Tensor":
        """Return a sum over all processes."""
        return tensor

    def average(self, tensors: "Sequence[Tensor]", group: Any = None) -> None:
        """Leave tensors as they are."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch nobody."""
        yield

    def following(self, tensor: "Tensor") -> "Tensor":
        """Return what the next process has."""
        return tensor


class Ranks:
    """The processes that work together, from one of them.

    Attributes:
        rank: number of this process, from 0.
        size: how many they are.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = self._failures = store
        # What messages call them: their numbers among all processes.
        self._names, self._all = list(range(size)), size
        self._patience = patience()
        self._asked = 0

    def among(self, members: Sequence[int], name: str) -> "Ranks":
        """Return some of these processes, this one among them, which number themselves anew; all know of failures.

        Args:
            members: their numbers here.
            name: of this set of processes, the same in each of them.
        """
        import torch.distributed as dist

        part = Ranks(dist.PrefixStore(name, self._store), list(members).index(self.rank), len(members))
        part._failures, part._all = self._failures, self._all
        part._names = [self._names[member] for member in members]
        return part

    def exchange(self, what: Any) -> list[Any]:
        """Return what each process has to say at this point, by rank; anything that JSON can say.

        Raises:
            OtherFailedError: another one has failed.
            UserError: another one does not answer.
        """
        self._asked += 1
        self._store.set(f"{self._asked}/{self.rank}", json.dumps(what))
        return [json.loads(self._get(f"{self._asked}/{rank}", rank)) for rank in range(self.size)]

    def _get(self, key: str, rank: int) -> bytes:
        """Return what another process has set, or will."""
        deadline, looked, pause = time.monotonic() + self._patience.total_seconds(), -math.inf, _SHORTEST
        # The store's own wait warns each time that its time is over.
        while True:
            if time.monotonic() - looked > _LOOK:
                self._check(rank)
                looked = time.monotonic()
            try:
                if self._store.check([key]):
                    value: bytes = self._store.get(key)
                    return value
            except RuntimeError:
                self._check(rank)
                raise
            if time.monotonic() > deadline:
                minutes = self._patience.total_seconds() / 60
                raise UserError(
                    f"Process {self._names[rank]} of {self._all} (counted from 0) did not answer for {minutes:g} "
                    f"minutes; look at what it printed, or set {_PATIENCE} higher."
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _check(self, rank: int) -> None:
        try:
            failed = self._failures.check([_FAILED])
        except RuntimeError:
            raise UserError(
                "The other processes cannot be reached any more, while process "
                f"{self._names[rank]} of {self._all} was waited for."
            ) from None
        if failed:
            raise OtherFailedError(json.loads(self._failures.get(_FAILED))[1])

    def announce(self, key: str, what: Any) -> None:
        """Say something to the others that they wait for by ``hear``; anything that JSON can say."""
        self._store.set(f"said/{key}", json.dumps(what))

    def hear(self, key: str, *, of: int) -> Any:
        """Return what a process announces, once it does.

        Raises:
            OtherFailedError: another one has failed.
            UserError: it does not answer.
        """
        return json.loads(self._get(f"said/{key}", of))

    def forget(self, key: str) -> None:
        """Drop an announcement that all have heard."""
        self._store.delete_key(f"said/{key}")

    def fail(self, sentence: str) -> bool:
        """Tell the others why this process fails; returns whether it is the first one, which is to say so."""
        failure = json.dumps([self.rank, sentence])
        try:
            first: bytes = self._failures.compare_set(_FAILED, "", failure)
        except RuntimeError:  # nobody is left
            return True
        return first.decode() == failure

    def total(self, tensor: "Tensor") -> "Tensor":
        """Return the sum of a tensor over all processes; it has no gradient."""
        total = tensor.detach().clone()
        self._sum(total)
        return total

    def average(self, tensors: "Sequence[Tensor]", group: Any = None) -> None:
        """Put into each tensor its sum over a group of processes (None: all), divided by the number of all.

        Many tensors go in one message.
        """
        import torch

        waiting: list[Tensor] = []
        for number, tensor in enumerate(tensors):
            waiting.append(tensor)
            if sum(queued.numel() for queued in waiting) > _MESSAGE or number == len(tensors) - 1:
                message = torch.cat([queued.flatten() for queued in waiting])
                self._sum(message, group)
                message /= self.size
                parts = message.split([queued.numel() for queued in waiting])
                for queued, part in zip(waiting, parts, strict=True):
                    queued.copy_(part.view_as(queued))
                waiting = []

    def following(self, tensor: "Tensor") -> "Tensor":
        """Return what the next process has; the last one gets what the first has."""
        import torch

        values = torch.zeros((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        values[self.rank] = tensor
        self._sum(values)
        return values[(self.rank + 1) % self.size]

    def _sum(self, tensor: "Tensor", group: Any = None) -> None:
        """Add up a tensor over a group of processes, in place."""
        import torch.distributed as dist

        with self.watching():
            self.connect(tensor.device.type)
            dist.all_reduce(tensor, group=group)

    def broadcast(self, tensor: "Tensor") -> None:
        """Copy the tensor of the first process to all others."""
        import torch.distributed as dist

        dist.broadcast(tensor, src=0)

    def connect(self, device: str) -> None:
        """Make the process group in which tensors on a kind of device are sent, unless there is one."""
        import torch.distributed as dist

        if not dist.is_initialized():
            backend = "nccl" if device == "cuda" else "gloo"
            store = dist.PrefixStore("sums", self._store)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=self._patience
            )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Say of a message between processes that fails inside the block which of them is gone.

        Raises:
            UserError: one is gone, or hangs.
            OtherFailedError: one has failed, and says why itself.
        """
        try:
            yield
        except RuntimeError as error:
            if not is_message_error(error):
                raise
            self._blame(error)

    def _blame(self, error: RuntimeError) -> NoReturn:
        """Raise what became of the others, when a sum with them has failed."""
        self._check(self.rank)
        self._store.set(f"alive/{self.rank}", "")
        time.sleep(_ANSWER)
        self._check(self.rank)
        gone = [self._names[rank] for rank in range(self.size) if not self._store.check([f"alive/{rank}"])]
        names = ", ".join(map(str, gone)) or "none of them"
        raise UserError(
            f"A message among {self.size} processes failed; gone or hanging (counted from 0): {names}. The same "
            f"command continues from the saved state ({str(error).splitlines()[0]})."
        ) from error

    def leave(self) -> None:
        """End: the first process, which may hold the store, goes last."""
        self._store.set(f"left/{self.rank}", "")
        if self.rank == 0:
            for rank in range(self.size):
                self._get(f"left/{rank}", rank)


# What torchrun, and the operators of Kubernetes, set.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Whether this process was started as one of several."""
    return _is_placed() and _number("WORLD_SIZE") > 1


def check_alone(command: str) -> None:
    """Raise ``UserError`` where a command that does all its work itself was started as one of several processes."""
    if is_launched():
        raise UserError(
            f"moeprobe {command} takes one process, and {_number('WORLD_SIZE')} were started (WORLD_SIZE); give the "
            "command without torchrun. Probes and trainings share their work among processes."
        )


def _is_placed() -> bool:
    return all(os.environ.get(name) for name in _VARIABLES)


def rank() -> int:
    """Return the number of this process; 0 where it is the only one."""
    return _number("RANK") if is_launched() else 0


def ranks_here() -> int:
    """Return how many of the processes that work together share this machine; all, where nobody says so."""
    if not is_launched():
        return 1
    name = "LOCAL_WORLD_SIZE" if os.environ.get("LOCAL_WORLD_SIZE") else "WORLD_SIZE"
    return max(_number(name), 1)


def process_rank() -> int:
    """Return the number of this process in torch's process group, or else as it was started."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else rank()


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

    if not is_launched() or name not in ("auto", "cuda") or not torch.cuda.is_available():
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
    if not _is_placed():
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
        if not ranks.fail(f"{error}"):
            raise OtherFailedError(f"{error}") from error
        raise
    ranks.leave()
    if dist.is_initialized():
        dist.destroy_process_group()
