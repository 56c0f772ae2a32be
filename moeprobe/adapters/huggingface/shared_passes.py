"""Passes of a model that several processes hold together: the first of them leads, and the others follow.

The first process does the work of a run. Whenever it runs the model, it announces the method and sends the arguments,
and the others call the same method of their part of the model. So no process but the first reads data or writes files.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import FinishedError, UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.other_dtype import in_dtype
from moeprobe.routing.pass_precision import PASSES, in_float32
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.device import full_float32
from moeprobe.runtime.distributed import Ranks, is_message_error

# Records that may be arguments of a pass, by name.
_RECORDS: dict[str, type] = {
    record.__name__: record for record in (TokenBatch, LayerRouting, RoutingTrace, PatchGrid)
}
_END: dict[str, Any] = {}


@contextmanager
def guarding(members: Ranks) -> Iterator[None]:
    """Say of a message in a pass that fails which process is gone, though it fails inside the model's own code.

    Raises:
        UserError: a process is gone or hangs, or what the block raises.
    """
    with members.watching():
        try:
            yield
        except UserError as error:
            if error.__cause__ is None or not _is_of_messages(error):
                raise
            raise error.__cause__ from None


@contextmanager
def leading(models: Sequence[Checkpoint], members: Ranks) -> Iterator[None]:
    """Let each pass of the models inside the block be one of all processes; they end with the block.

    After an error other than that a run is finished already, they learn of it otherwise (``runtime.distributed``).
    """
    leader = _Leader(members)
    with ExitStack() as stack:
        for number, model in enumerate(_each(models)):
            for name in PASSES:
                method = getattr(model, name, None)
                if method is not None:
                    stack.callback(_put_back, model, name, vars(model).get(name))
                    setattr(model, name, leader.announce_calls(method, name, number, _device(model)))
        try:
            yield
        except FinishedError:
            leader.end()
            raise
        leader.end()


@full_float32()
def follow(models: Sequence[Checkpoint], members: Ranks) -> None:
    """Run what the first process runs, until it ends.

    Raises:
        UserError: it is gone.
    """
    parts, number = list(_each(models)), 0
    while True:
        call = members.hear(f"{number}", of=0)
        if call == _END:
            return
        number += 1
        device = _device(parts[call["model"]])
        with guarding(members):
            tensors = _receive(call["tensors"], device, members)
            arguments = _decode(call["arguments"], tensors)
            with ExitStack() as stack:
                if call["dtype"] is not None:
                    stack.enter_context(in_dtype(device, getattr(torch, call["dtype"])))
                try:
                    getattr(parts[call["model"]], call["method"])(*arguments["args"], **arguments["kwargs"])
                except UserError as error:
                    # The first process meets what is wrong with the model or the inputs, and says it.
                    if _is_of_messages(error):
                        raise


class _Leader:
    """The first process, as it announces what it runs."""

    def __init__(self, members: Ranks) -> None:
        self._members, self._number, self._is_running = members, 0, False

    def announce_calls(
        self, method: Callable[..., Any], name: str, model: int, device: torch.device
    ) -> Callable[..., Any]:
        """Return a method that the other processes run at the same time."""

        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            # A method that calls another one announces the outer one alone.
            if self._is_running:
                return method(*args, **kwargs)
            self._is_running = True
            try:
                with guarding(self._members):
                    self._announce({"model": model, "method": name}, args, kwargs, device)
                    return method(*args, **kwargs)
            finally:
                self._is_running = False

        return run

    def _announce(
        self, call: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> None:
        tensors: list[Tensor] = []
        arguments = _encode({"args": list(args), "kwargs": kwargs}, tensors)
        kind = device.type
        narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        content = {
            "arguments": arguments,
            "tensors": [_form(tensor) for tensor in tensors],
            "dtype": None if narrow is None else str(narrow).removeprefix("torch."),
        }
        self._say(call | content)
        if tensors:
            self._members.broadcast(_bytes_of(tensors, device))

    def _say(self, call: dict[str, Any]) -> None:
        # All have heard the one before, since they took part in its pass.
        if self._number:
            self._members.forget(f"{self._number - 1}")
        self._members.announce(f"{self._number}", call)
        self._number += 1

    def end(self) -> None:
        """Let the others end."""
        self._say(_END)


def _is_of_messages(error: UserError) -> bool:
    """Whether a model's code failed since a message between processes did."""
    return isinstance(error.__cause__, RuntimeError) and is_message_error(error.__cause__)


def _put_back(model: Any, name: str, method: Callable[..., Any] | None) -> None:
    """Give a model its own method of a name again; None = the method of its class."""
    if method is None:
        delattr(model, name)
    else:
        setattr(model, name, method)


def _each(models: Sequence[Checkpoint]) -> Iterator[Any]:
    """Yield the models, and those in float32 that narrower ones are made of."""
    for checkpoint in models:
        yield checkpoint.model
        if in_float32(checkpoint.model) is not checkpoint.model:
            yield in_float32(checkpoint.model)


def _device(model: Any) -> torch.device:
    device: torch.device = model.device
    return device


# Arguments are sent as JSON, with the bytes of all tensors in one message.


def _encode(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value as JSON can say it; tensors are appended to ``tensors``, and their places kept."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"record": type(value).__name__, "fields": _encode(fields, tensors)}
    if isinstance(value, dict):
        return {"dict": {str(key): _encode(item, tensors) for key, item in value.items()}}
    if isinstance(value, tuple | list):
        return {"list" if isinstance(value, list) else "tuple": [_encode(item, tensors) for item in value]}
    return {"value": value}


def _decode(code: dict[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Return the value that ``_encode`` wrote."""
    ((kind, content),) = [(key, item) for key, item in code.items() if key != "fields"]
    match kind:
        case "tensor":
            return tensors[content]
        case "record":
            return _RECORDS[content](**_decode(code["fields"], tensors))
        case "dict":
            return {key: _decode(item, tensors) for key, item in content.items()}
        case "list":
            return [_decode(item, tensors) for item in content]
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case _:
            return content


def _form(tensor: Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "on_device": tensor.device.type != "cpu",
    }


def _bytes_of(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the bytes of tensors, one after the other."""
    return torch.cat(
        [tensor.detach().to(device).contiguous().flatten().view(torch.uint8) for tensor in tensors]
    )


def _receive(forms: Sequence[dict[str, Any]], device: torch.device, members: Ranks) -> list[Tensor]:
    """Return the tensors that the first process sends, each on the kind of device that it has there."""
    if not forms:
        return []
    dtypes = [getattr(torch, form["dtype"]) for form in forms]
    sizes = [
        torch.Size(form["shape"]).numel() * dtype.itemsize for form, dtype in zip(forms, dtypes, strict=True)
    ]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    members.broadcast(message)
    return [
        # A copy, as a part of the message need not begin where its numbers may.
        part.clone().view(dtype).reshape(form["shape"]).to(device if form["on_device"] else "cpu")
        for part, dtype, form in zip(message.split(sizes), dtypes, forms, strict=True)
    ]
