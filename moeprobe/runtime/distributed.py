"""Processes that work on one thing together, as ``torchrun`` starts them: the only user of ``torch.distributed``.

Processes are numbered by their rank, from 0. What they tell one another in words goes through the store that they meet
at, so that one which fails, ends or hangs is named; sums of tensors go through a process group (gloo on CPUs, NCCL on
CUDA).
"""

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from moeprobe.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

# What torchrun, and the operators of Kubernetes, set.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Minutes after which a process that does not answer is given up.
_PATIENCE = "MOEPROBE_TIMEOUT_MINUTES"
# Numbers of one message, and seconds in which a process that is there answers.
_MESSAGE, _ANSWER = 2**22, 5.0
_FAILED, _LOOK = "failed", timedelta(seconds=1)


class OtherFailedError(UserError):
    """Another process has failed, and says why itself."""


def launched() -> bool:
    """Whether this process was started as one of several."""
    return all(os.environ.get(name) for name in _VARIABLES) and _number("WORLD_SIZE") > 1


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

    def total(self, own: "Tensor") -> "Tensor":
        """Return a sum over all processes."""
        return own

    def average(self, tensors: "Sequence[Tensor]") -> None:
        """Leave tensors as they are."""

    def following(self, own: "Tensor") -> "Tensor":
        """Return what the next process has."""
        return own


class Ranks:
    """The processes that work together, from one of them.

    Attributes:
        rank: number of this process, from 0.
        size: how many they are.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._patience = patience()
        self._asked = 0

    def exchange(self, what: Any) -> list[Any]:
        """Return what each process has to say at this point, by rank; anything that JSON can say.

        Raises:
            OtherFailedError: another one has failed.
            UserError: another one does not answer.
        """
        self._asked += 1
        self._store.set(f"{self._asked}/{self.rank}", json.dumps(what))
        return [json.loads(self._get(f"{self._asked}/{other}", other)) for other in range(self.size)]

    def _get(self, key: str, other: int) -> bytes:
        """Return what another process has set, or will."""
        deadline = time.monotonic() + self._patience.total_seconds()
        while True:
            self._check(other)
            try:
                self._store.wait([key], _LOOK)
            except RuntimeError:  # not yet, or never: the store says which
                if time.monotonic() > deadline:
                    minutes = self._patience.total_seconds() / 60
                    raise UserError(
                        f"Process {other} of {self.size} (counted from 0) did not answer for {minutes:g} minutes; look "
                        f"at what it printed, or set {_PATIENCE} higher."
                    ) from None
            else:
                value: bytes = self._store.get(key)
                return value

    def _check(self, other: int) -> None:
        try:
            failed = self._store.check([_FAILED])
        except RuntimeError:
            raise UserError(
                f"The other processes cannot be reached any more, while process {other} of {self.size} was waited for."
            ) from None
        if failed:
            raise OtherFailedError(json.loads(self._store.get(_FAILED))[1])

    def fail(self, sentence: str) -> bool:
        """Tell the others why this process fails; returns whether it is the first one, which is to say so."""
        own = json.dumps([self.rank, sentence])
        try:
            first: bytes = self._store.compare_set(_FAILED, "", own)
        except RuntimeError:  # nobody is left
            return True
        return first.decode() == own

    def total(self, own: "Tensor") -> "Tensor":
        """Return the sum of a tensor over all processes; it has no gradient."""
        whole = own.detach().clone()
        self._sum(whole)
        return whole

    def average(self, tensors: "Sequence[Tensor]") -> None:
        """Put the mean over all processes into each tensor; many go in one message."""
        import torch

        waiting: list[Tensor] = []
        for number, tensor in enumerate(tensors):
            waiting.append(tensor)
            if sum(one.numel() for one in waiting) > _MESSAGE or number == len(tensors) - 1:
                message = torch.cat([one.flatten() for one in waiting])
                self._sum(message)
                message /= self.size
                parts = message.split([one.numel() for one in waiting])
                for one, part in zip(waiting, parts, strict=True):
                    one.copy_(part.view_as(one))
                waiting = []

    def following(self, own: "Tensor") -> "Tensor":
        """Return what the next process has; the last one gets what the first has."""
        import torch

        whole = torch.zeros((self.size, *own.shape), dtype=own.dtype, device=own.device)
        whole[self.rank] = own
        self._sum(whole)
        return whole[(self.rank + 1) % self.size]

    def _sum(self, tensor: "Tensor") -> None:
        """Add up a tensor over all processes, in place."""
        import torch.distributed as dist

        try:
            if not dist.is_initialized():
                backend = "nccl" if tensor.device.type == "cuda" else "gloo"
                store = dist.PrefixStore("sums", self._store)
                dist.init_process_group(
                    backend, store=store, rank=self.rank, world_size=self.size, timeout=self._patience
                )
            dist.all_reduce(tensor)
        except RuntimeError as error:
            self._blame(error)

    def _blame(self, error: RuntimeError) -> NoReturn:
        """Raise what became of the others, when a sum with them has failed."""
        self._check(self.rank)
        self._store.set(f"alive/{self.rank}", "")
        time.sleep(_ANSWER)
        self._check(self.rank)
        gone = [one for one in range(self.size) if not self._store.check([f"alive/{one}"])]
        names = ", ".join(map(str, gone)) or "none of them"
        raise UserError(
            f"A sum over {self.size} processes failed; gone or hanging (counted from 0): {names}. The same command "
            f"goes on from the last checkpoint ({str(error).splitlines()[0]})."
        ) from error

    def leave(self) -> None:
        """End: the first process, which may hold the store, goes last."""
        self._store.set(f"left/{self.rank}", "")
        if self.rank == 0:
            for other in range(self.size):
                self._get(f"left/{other}", other)


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
    ranks = Ranks(dist.PrefixStore("moeprobe", store), number, size)
    try:
        yield ranks
    except OtherFailedError:
        raise
    except UserError as error:
        if not ranks.fail(error.sentence):
            raise OtherFailedError(error.sentence) from error
        raise
    ranks.leave()
    if dist.is_initialized():
        dist.destroy_process_group()
