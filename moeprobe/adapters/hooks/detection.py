"""Find the submodules that are routers: by name, by class, or by the use of their outputs.

A module whose output is followed by a top-k is a router. That is seen by watching one forward pass: what a module
returns is followed through the functions that keep one number per expert (softmax, casts, reshapes, sums) until it
reaches ``topk``, ``argmax``, ``max``, ``sort`` or ``argsort`` along the experts.
"""

import fnmatch
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import unknown

_CHOOSING = {"topk", "argmax", "max", "sort", "argsort"}
_KEEPING = {
    "softmax", "logsoftmax", "sigmoid", "float", "double", "half", "bfloat16", "to", "type", "typeas", "view",
    "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "detach", "transpose", "permute",
    "movedim", "add", "radd", "sub", "mul", "rmul", "div", "truediv", "maskedfill", "where", "tanh", "clamp",
}  # fmt: skip
_ACTIVATIONS = {"softmax": "softmax", "logsoftmax": "softmax", "sigmoid": "sigmoid"}


@dataclass(frozen=True)
class DetectedRouter:
    """A router: its module's name and the observed facts (None if nothing was watched or the facts differ)."""

    name: str
    top_k: int | None = None
    activation: str | None = None


@dataclass(frozen=True)
class _Origin:
    """Where a tensor of scores is from: modules, and what they have been through."""

    modules: frozenset[str]
    activation: str | None = None


@dataclass(frozen=True)
class HookedChoice:
    """One choosing.

    Attributes:
        function: by which.
        count: how many, None = all in order.
        experts: those chosen, ``(..., K)``, best first.
        precision: of the scores: the smallest step from one, 0 where they are whole numbers.
    """

    function: str
    count: int | None
    experts: Tensor
    precision: float


# What was chosen from.
Choices = dict[_Origin, list[HookedChoice]]


def match_modules(net: nn.Module, routers: str | type[nn.Module]) -> list[str]:
    """Return the submodules of a class, given as such or as ``package.module.Class``, or whose name fits a glob.

    Raises:
        UserError: there is none.
    """
    names = {name: module for name, module in net.named_modules(remove_duplicate=False) if name}
    if isinstance(routers, str):
        matches = [name for name in names if fnmatch.fnmatchcase(name, routers)]
        if matches:
            return matches
        kind = _class(routers)
        if kind is None:
            raise UserError(_no_match(routers, names))
    else:
        kind = routers
    matches = [name for name, module in names.items() if isinstance(module, kind)]
    if not matches:
        kinds = sorted({type(module).__name__ for module in names.values()})
        raise UserError(f"The model has no {kind.__name__}; its modules are: {', '.join(kinds)}.")
    return matches


def _class(path: str) -> type[nn.Module] | None:
    """Return the class that a dotted path means; None where it means none."""
    package, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None


def _no_match(pattern: str, names: Mapping[str, nn.Module]) -> str:
    """Return the sentence for a glob that fits nothing; of names that differ in numbers alone one is named."""
    kinds = {".".join("*" if part.isdigit() else part for part in name.split(".")): name for name in names}
    gates = [kind for kind in kinds if any(word in kind.lower() for word in ("gat", "rout"))]
    sentence = unknown("module", pattern, kinds)
    first, _, _ = sentence.partition(" There are:")
    named_kinds = gates or list(kinds)[:20]
    return f"{first} Modules {'that sound like routers' if gates else 'here'}: {', '.join(named_kinds)}."


def detect(net: nn.Module, run: Callable[[], object]) -> list[DetectedRouter]:
    """Return the modules whose outputs are followed by a top-k in one forward pass, in forward order.

    Args:
        net: the model.
        run: does a forward pass.

    Raises:
        UserError: there is none, a choice is made from several of them, or they are not of one kind.
    """
    watch = _Watch()
    with _watching(net, watch):
        run()
    if not watch.choices:
        raise UserError(
            "No module was found whose output is followed by a top-k; name the routers (routers: a glob over module "
            "names, or a class), and how they are read, if their logits are no module's output."
        )
    for origin in watch.choices:
        if len(origin.modules) > 1:
            several = ", ".join(sorted(origin.modules))
            raise UserError(
                f"Experts are chosen from what several modules give ({several}); name the routers."
            )
    routers = [
        DetectedRouter(name, _one_of(watch.choices, name), _before(watch.choices, name))
        for name in dict.fromkeys(next(iter(origin.modules)) for origin in watch.choices)
    ]
    modules = dict(net.named_modules())
    kinds = {(type(modules[item.name]), watch.sizes[item.name], item.top_k) for item in routers}
    if len(kinds) > 1:
        listed = ", ".join(
            f"{item.name} ({type(modules[item.name]).__name__} to {watch.sizes[item.name]})"
            for item in routers
        )
        raise UserError(f"A top-k follows modules of different kinds; say which are the routers: {listed}.")
    return routers


@contextmanager
def _watching(net: nn.Module, watch: "_Watch") -> Iterator[None]:
    """Show ``watch`` the outputs of the modules and the operations on them."""

    def reader(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: watch.produced(name, output)

    with ExitStack() as stack:
        for name, module in net.named_modules():
            if name:
                stack.callback(module.register_forward_hook(reader(name)).remove)
        stack.enter_context(watch)
        yield


@contextmanager
def choosing(net: nn.Module) -> Iterator[Callable[[str, int], list[HookedChoice]]]:
    """Watch a forward pass; yields a function that returns which K experts were chosen from a module's output.

    If there is a ``topk``, no other choice counts, as for K itself.
    """
    watch = _Watch()

    def choices_of(name: str, top_k: int) -> list[HookedChoice]:
        return [
            replace(call, experts=call.experts[..., :top_k])
            for call in _choices_of(watch.choices, name)
            if call.count in (None, top_k)
        ]

    with _watching(net, watch):
        yield choices_of


def _choices_of(choices: Choices, name: str) -> list[HookedChoice]:
    """Return the choices that follow the output of a module.

    If there is a ``topk``, a maximum is not routing (but a stable softmax, or a count of the load).
    """
    calls = [call for origin, followers in choices.items() if name in origin.modules for call in followers]
    return [call for call in calls if call.function == "topk"] or calls


def _one_of(choices: Choices, name: str) -> int | None:
    """Return K where one top-k follows a module; None where there are several, or all experts are sorted."""
    counts = [call.count for call in _choices_of(choices, name)]
    return counts[0] if len(counts) == 1 else None


def _before(choices: Choices, name: str) -> str | None:
    return next(
        (origin.activation for origin in choices if name in origin.modules and origin.activation), None
    )


class _Watch(TorchFunctionMode):
    """Follow the outputs of modules to the operations that choose from them.

    ``choices`` holds the candidate modules; ``sizes`` E of each module.
    """

    def __init__(self) -> None:
        super().__init__()
        self.choices: Choices = {}
        self.sizes: dict[str, int] = {}
        # The tensors themselves are kept, or another might get the same id.
        self._seen: dict[int, tuple[Tensor, _Origin]] = {}

    def produced(self, name: str, output: Any) -> None:
        """Take note of what a module returned, unless it handed on what one inside it gave."""
        for value in _tensors(output):
            if value.ndim >= 2 and value.shape[-1] > 1 and id(value) not in self._seen:
                self._seen[id(value)] = value, _Origin(frozenset([name]))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and record its effect on tensors that are followed."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "").replace("_", "")
        if name in _CHOOSING:
            self._record_choice(name, args, kwargs, result)
        elif name in _KEEPING:
            self._record_origin(name, [*args, *kwargs.values()], result)
        return result

    def _record_choice(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or id(scores) not in self._seen:
            return
        positional = list(args[1:])
        count = (kwargs.get("k") or positional.pop(0)) if name == "topk" else None
        along = kwargs.get(
            "dim", positional[0] if positional else (-1 if name in ("topk", "sort", "argsort") else None)
        )
        if isinstance(along, int) and along % scores.ndim == scores.ndim - 1:
            origin = self._seen[id(scores)][1]
            best = name in ("argmax", "max")
            experts = result if isinstance(result, Tensor) else result[1]
            if (
                count is None
                and not best
                and not kwargs.get("descending", len(positional) > 1 and positional[1])
            ):
                experts = experts.flip(-1)
            if best and experts.ndim < scores.ndim:
                experts = experts.unsqueeze(-1)
            precision = torch.finfo(scores.dtype).eps if scores.is_floating_point() else 0.0
            self.choices.setdefault(origin, []).append(
                HookedChoice(name, 1 if best else count, experts, precision)
            )
            for module in origin.modules:
                self.sizes[module] = scores.shape[-1]

    def _record_origin(self, name: str, arguments: list[Any], result: Any) -> None:
        if not isinstance(result, Tensor) or result.ndim == 0:
            return
        origins = [
            self._seen[id(value)][1]
            for value in arguments
            if isinstance(value, Tensor) and id(value) in self._seen and value.shape[-1] == result.shape[-1]
        ]
        if origins:
            modules = frozenset().union(*(origin.modules for origin in origins))
            activation = next(
                (origin.activation for origin in origins if origin.activation), _ACTIVATIONS.get(name)
            )
            self._seen[id(result)] = result, _Origin(modules, activation)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))


def unwrapped(net: nn.Module) -> nn.Module:
    """Return the module itself where ``torch.compile`` or data parallelism wraps it: they pass hooks by."""
    while True:
        if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
            net = net.module
        elif hasattr(net, "_orig_mod"):  # naming the class of torch.compile would import the compiler
            net = net.get_submodule("_orig_mod")
        else:
            return net
