"""Probe a model in the middle of its training, and leave everything of the training as it was."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from moeprobe.runtime.seeds import torch_seed
from moeprobe.runtime.torch_state import buffers_kept, random_numbers_kept

A = TypeVar("A")
# Attributes by the object that has them: a module, or the configuration of one.
Attributes = list[tuple[Any, dict[str, Any]]]
_MISSING = object()


class ProbedModel(Generic[A]):
    """A model that is trained elsewhere, with the adapter that makes it traceable.

    What the adapter sets on the model (an unlimited capacity, no cache of keys) holds inside of ``probing`` alone.

    Args:
        net: the model.
        adapt: makes the adapter; it may run the model and change it.
        seed: of what the model draws while it is probed, which is the same each time.
    """

    def __init__(self, net: nn.Module, adapt: Callable[[], A], *, seed: int) -> None:
        self.net, self._seed = net, seed
        with preserve_state(net, seed=seed):
            before = attributes_of(net)
            self.adapter = adapt()
            self._settings = changes_since(before)

    @contextmanager
    def probing(self) -> Iterator[A]:
        """Put the model into evaluation mode with the adapter's settings, and back."""
        with preserve_state(self.net, seed=self._seed):
            self.net.eval()
            for owner, name, value in self._settings:
                vars(owner)[name] = value
            yield self.adapter


@contextmanager
def preserve_state(net: nn.Module, *, seed: int) -> Iterator[None]:
    """Put back after the block what a forward pass or an adapter may change.

    These are: the random states of Python, NumPy and torch; attributes of modules and of their configurations, the
    mode of training among them; buffers; which parameters have gradients. Weights that autocast converts inside of the
    block are not kept for the training, which would find them without a way back.

    Args:
        net: the model.
        seed: of all random states inside of the block.
    """
    devices = {parameter.device for parameter in net.parameters() if parameter.device.type != "cpu"}
    attributes = attributes_of(net)
    requires_grad = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
    with ExitStack() as stack:
        stack.enter_context(random_numbers_kept(devices))
        stack.enter_context(buffers_kept(net))
        for kind in {"cpu", *(device.type for device in devices)}:
            stack.enter_context(_autocast_without_cache(kind))
        _seed(torch_seed(seed, "monitor"), devices)
        try:
            yield
        finally:
            restore(attributes)
            for parameter, before in requires_grad:
                parameter.requires_grad_(before)


def attributes_of(net: nn.Module) -> Attributes:
    """Return the attributes of all modules and of their configurations, and what their dictionaries of buffers hold."""
    modules = list(net.modules())
    configurations = {
        id(config): config
        for module in modules
        for config in _configurations(vars(module).get("config"))
        if hasattr(config, "__dict__")
    }
    owners = [*modules, *configurations.values()]
    return [(owner, dict(vars(owner))) for owner in owners] + [
        (module._buffers, dict(module._buffers)) for module in modules if module._buffers
    ]


def changes_since(before: Attributes) -> list[tuple[Any, str, Any]]:
    """Return the attributes that have another value than before: their owner, name and value."""
    return [
        (owner, name, value)
        for owner, values in before
        for name, value in _dictionary(owner).items()
        if not isinstance(owner, dict) and values.get(name, _MISSING) is not value
    ]


def restore(before: Attributes) -> None:
    """Put attributes back, and remove those that were not there."""
    for owner, values in before:
        present = _dictionary(owner)
        for name in [name for name in present if name not in values]:
            del present[name]
        for name, value in values.items():
            if present.get(name, _MISSING) is not value:
                present[name] = value


def _dictionary(owner: Any) -> dict[str, Any]:
    return owner if isinstance(owner, dict) else vars(owner)


def _configurations(config: Any) -> list[Any]:
    """Return a configuration of ``transformers`` and the one of its text model, if that is a part."""
    text_config = getattr(config, "get_text_config", None)
    return [config] if text_config is None else [config, text_config()]


def _seed(seed: int, devices: set[torch.device]) -> None:
    """Seed what a model may draw from on the CPU and on its devices; ``torch.manual_seed`` would seed all there are."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed)
        else:
            torch.get_device_module(device).manual_seed(seed)


def _autocast_without_cache(kind: str) -> torch.autocast:
    return torch.autocast(
        kind,
        dtype=torch.get_autocast_dtype(kind),
        enabled=torch.is_autocast_enabled(kind),
        cache_enabled=False,
    )
