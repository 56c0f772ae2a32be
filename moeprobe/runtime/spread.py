"""How several processes share one model: the words of ``parallel``, and the group of processes that holds one model.

Without a group, each process holds a whole model, and the inputs are spread over the processes.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.runtime.distributed import Ranks, ranks_here

REPLICAS, EXPERTS, TENSOR = "replicas", "experts", "tensor"
_WORD = re.compile(rf"({EXPERTS}|{TENSOR})(?::([1-9]\d{{0,5}}))?")


@dataclass(frozen=True)
class ModelShare:
    """What a process holds of a model.

    Attributes:
        share: "experts" or "tensor".
        size: processes that hold a model together; None = all of them.
    """

    share: str
    size: int | None = None

    @classmethod
    def read(cls, text: str) -> "ModelShare | None":
        """Return what ``experts``, ``tensor`` or ``experts:4`` means; None for ``replicas``.

        Raises:
            UserError: it is none of these, or names less than two processes.
        """
        if text == REPLICAS:
            return None
        match = _WORD.fullmatch(text)
        if match is None or match[2] == "1":
            raise UserError(
                f"{option('parallel')} is {REPLICAS}, {EXPERTS} or {TENSOR}, the last two with a number of processes "
                f"from 2, e.g. {EXPERTS}:4; got {text[:40]!r}."
            )
        return cls(match[1], None if match[2] is None else int(match[2]))


@dataclass(frozen=True)
class ModelGroup:
    """The processes that hold one model, from one of them.

    Attributes:
        share: what each of them holds a part of: "experts" or "tensor".
        members: the processes of the group, which number themselves from 0.
        leaders: the first process of each group; None in the others.
        number: of this group, from 0.
        count: how many groups there are.
    """

    share: str
    members: Ranks
    leaders: Ranks | None
    number: int
    count: int

    @classmethod
    def of(cls, ranks: Ranks, text: str) -> "ModelGroup | None":
        """Return the group of this process; None where each process holds a whole model.

        Raises:
            UserError: the processes do not divide into groups of that size.
        """
        spread = ModelShare.read(text)
        if spread is None:
            return None
        size = spread.size or ranks.size
        if ranks.size % size:
            raise UserError(
                f"{option('parallel', text)} takes a multiple of {size} processes, and torchrun started {ranks.size}."
            )
        number = ranks.rank // size
        leaders = range(0, ranks.size, size)
        return cls(
            spread.share,
            ranks.among(range(number * size, (number + 1) * size), f"group {number}"),
            ranks.among(leaders, "leaders") if ranks.rank in leaders else None,
            number,
            len(leaders),
        )

    @property
    def size(self) -> int:
        """Processes that hold the model."""
        return self.members.size

    def facts(self) -> dict[str, Any]:
        """Return what a sidecar says of it."""
        return {"share": self.share, "processes": self.size, "groups": self.count}


_current: ContextVar[ModelGroup | None] = ContextVar("group", default=None)


def current_group() -> ModelGroup | None:
    """Return the group that shares the models opened here; None where each process holds whole ones."""
    return _current.get()


@contextmanager
def sharing_models(group: ModelGroup | None) -> Iterator[None]:
    """Let models that are opened inside the block be held by a group of processes; None = by each process."""
    before = _current.set(group)
    try:
        yield
    finally:
        _current.reset(before)


def check_group(text: str) -> None:
    """Raise ``UserError`` where a model is to be shared, and no group of processes is there to share it."""
    if text != REPLICAS and current_group() is None:
        raise UserError(
            f"{option('parallel', text)} spreads a model over the processes of one run: let torchrun start a probe in "
            "several processes, without a plan or a shard of it; or leave the option out."
        )


def check_device(name: str) -> None:
    """Raise ``UserError`` where a model that is shared should be elsewhere than ``transformers`` puts it."""
    import torch

    from moeprobe.runtime.device import choose_device

    kind = torch._C._get_accelerator().type
    if choose_device(name).type != kind:
        raise UserError(
            f"With {option('parallel')}, transformers puts a model on {kind}; leave {option('device')} out."
        )
    processes = ranks_here()
    if kind == "cuda" and processes > torch.cuda.device_count():
        raise UserError(
            f"{processes} processes share {torch.cuda.device_count()} devices of this machine; start one for each."
        )
