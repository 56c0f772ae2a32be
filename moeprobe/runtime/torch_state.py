"""What a pass of a model may change beside its output, kept and put back: random numbers, buffers and parameters."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RandomStates:
    """States of the random numbers of PyTorch (of the CPU and of devices), NumPy and Python."""

    cpu: Tensor
    devices: tuple[tuple[torch.device, Tensor], ...]
    numpy: Any
    python: Any

    @classmethod
    def now(cls, devices: Collection[torch.device]) -> "RandomStates":
        """Return the present states; devices that are the CPU are of no account."""
        accelerators = [device for device in devices if device.type != "cpu"]
        of_devices = tuple(
            (device, torch.get_device_module(device).get_rng_state(*_index(device)))
            for device in accelerators
        )
        return cls(torch.get_rng_state(), of_devices, np.random.get_state(), random.getstate())

    def restore(self) -> None:
        """Make these the present states."""
        torch.set_rng_state(self.cpu)
        for device, state in self.devices:
            torch.get_device_module(device).set_rng_state(state, *_index(device))
        np.random.set_state(self.numpy)
        random.setstate(self.python)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """Return what says which device of a kind is meant, where there may be several."""
    return () if device.type == "mps" else (device,)


@contextmanager
def random_numbers_kept(devices: Collection[torch.device]) -> Iterator[None]:
    """Leave the random numbers as they are found, on the CPU and on these devices."""
    states = RandomStates.now(devices)
    try:
        yield
    finally:
        states.restore()


@contextmanager
def buffers_kept(net: nn.Module) -> Iterator[None]:
    """Leave the buffers of a model as they are found: the tensors and what they hold."""
    buffers = [
        (module._buffers, name, buffer, buffer.detach().clone())
        for module in net.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for holder, name, buffer, content in buffers:
                holder[name] = buffer
                # Not where nothing has changed: a graph that waits for its backward pass may hold the buffer.
                if not torch.equal(buffer, content):
                    buffer.copy_(content)


@contextmanager
def values_exchanged(tensors: Sequence[Tensor], new: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Write other values into tensors, ``new`` of their own, and put back their very bits."""
    tensors = [tensor.detach() for tensor in tensors]
    contents = [tensor.clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for tensor, content in zip(tensors, contents, strict=True):
                tensor.copy_(new(content))
        yield
    finally:
        with torch.no_grad():
            for tensor, content in zip(tensors, contents, strict=True):
                tensor.copy_(content)
