"""Large models that are in memory one at a time: the one in use has its weights, and the others have shapes alone.

A model is opened once, checked, and keeps all that was learned of it. Its weights are freed as soon as another model of
the same residence is opened or used, and read again when it is used itself. So memory holds the largest model at most.
A run opens its first model last and measures it first, so that each other model is read twice. Small models stay: they
take little memory, and time to read again.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

# What runs the network or reads its parameters, of any capability of a model.
_METHODS = (
    "trace", "embeddings", "weights", "log_probabilities", "replayed_log_probabilities", "text_trunks",
    "resumed_log_probabilities",
)  # fmt: skip


# What ``accelerate`` calls its hook on a module.
_HOOK = "_hf_hook"

# Models whose weights together take no more bytes stay in memory.
SMALL = 2**31


class Residence:
    """Room for the weights of one large model, or of several small ones.

    Attributes:
        num_loads: how often weights were read.
    """

    def __init__(self) -> None:
        self._residents: list[nn.Module] = []
        self.num_loads = 0

    def make_room(self) -> None:
        """Free the weights that are in memory, unless one more model of their size leaves all of them small."""
        sizes = [count_bytes(network) for network in self._residents]
        if sum(sizes) + max(sizes, default=0) > SMALL:
            for network in self._residents:
                free_weights(network)
            self._residents = []

    def admit(self, model: Any, network: nn.Module, load: Callable[[], nn.Module]) -> None:
        """Take in a model that has just been opened.

        Args:
            model: whose methods bring the weights back.
            network: the module that holds them.
            load: returns a module of the same structure with the weights.
        """
        self._residents.append(network)
        self.num_loads += 1
        for name in _METHODS:
            method = getattr(model, name, None)
            if method is not None:
                setattr(model, name, self._with_weights(method, network, load))

    def _with_weights(
        self, method: Callable[..., Any], network: nn.Module, load: Callable[[], nn.Module]
    ) -> Callable[..., Any]:
        """Return a method that has the weights of a network in memory when it runs."""

        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            # By identity: modules have no other equality.
            if network not in self._residents:
                self.make_room()
                take_weights(network, load())
                self._residents.append(network)
                self.num_loads += 1
            return method(*args, **kwargs)

        return run


_current: ContextVar[Residence | None] = ContextVar("residence", default=None)


@contextmanager
def sharing(residence: Residence | None) -> Iterator[None]:
    """Let models that are opened inside the block share a residence; None = each keeps its weights."""
    before = _current.set(residence)
    try:
        yield
    finally:
        _current.reset(before)


def make_room() -> None:
    """Free the weights of the residence that a model is about to be opened into, if there is one."""
    residence = _current.get()
    if residence is not None:
        residence.make_room()


def admit(model: Any, network: nn.Module, load: Callable[[], nn.Module]) -> None:
    """Take a model into the residence that it was opened into, if there is one; see ``Residence.admit``."""
    residence = _current.get()
    if residence is not None:
        residence.admit(model, network, load)


def count_bytes(network: nn.Module) -> int:
    """Return how many bytes the parameters and buffers of a network take."""
    return sum(tensor.nbytes for tensors in (network.parameters(), network.buffers()) for tensor in tensors)


def free_weights(network: nn.Module) -> None:
    """Keep only the shapes of parameters and buffers; reading one raises, since they are on torch's device ``meta``."""
    # By the identity of tensors, which are kept as well, or another could get the same one: two places stay one tensor.
    emptied: dict[int, tuple[Any, Any]] = {}
    for module in network.modules():
        # What brings weights from elsewhere while a layer runs (``accelerate``) holds them.
        vars(module).pop(_HOOK, None)
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    _, empty = emptied.setdefault(id(tensor), (tensor, _without_memory(tensor)))
                    tensors[name] = empty


def _without_memory(tensor: Tensor) -> Tensor:
    empty = tensor.detach().to("meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def take_weights(network: nn.Module, source: nn.Module) -> None:
    """Give a network the parameters and buffers of another of the same structure."""
    modules = dict(source.named_modules(remove_duplicate=False))
    for path, module in network.named_modules(remove_duplicate=False):
        loaded = modules[path]
        module._parameters.update(loaded._parameters)
        module._buffers.update(loaded._buffers)
        if _HOOK in vars(loaded):
            setattr(module, _HOOK, vars(loaded)[_HOOK])
