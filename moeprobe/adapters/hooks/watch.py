"""Follow what a module returns to the function that chooses from it, in one forward pass.

What a module returns is followed through the functions that keep one number per expert (softmax, casts, reshapes, sums)
until it reaches ``topk``, ``argmax``, ``max``, ``sort`` or ``argsort`` along the experts. Calls inside a module are
seen too: a gate may choose by itself. A call can be made to return another choice, with the scores of that choice.

Axes: E experts, K choices.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from moeprobe.adapters.base import PassEnd

_CHOOSING = {"topk", "argmax", "max", "sort", "argsort"}
_KEEPING = {
    "softmax", "logsoftmax", "sigmoid", "float", "double", "half", "bfloat16", "to", "type", "typeas", "view",
    "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "detach", "transpose", "permute",
    "movedim", "add", "radd", "sub", "mul", "rmul", "div", "truediv", "maskedfill", "where", "tanh", "clamp",
    "getitem",
}  # fmt: skip
_ACTIVATIONS = {"softmax": "softmax", "logsoftmax": "softmax", "sigmoid": "sigmoid"}


@dataclass(frozen=True)
class ScoresOrigin:
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
        scores: ``(..., E)`` that they were chosen from.
        origin: of the scores; None where they are no module's output.
        ascending: the function gave the best last.
        lowest: the best have the lowest scores.
        along_experts: whether experts are chosen for tokens, and not tokens for experts.
    """

    function: str
    count: int | None
    experts: Tensor
    scores: Tensor
    origin: ScoresOrigin | None
    ascending: bool = False
    lowest: bool = False
    along_experts: bool = True

    @property
    def ranked(self) -> Tensor:
        """Scores ``(..., E)`` of which the highest are chosen."""
        return -self.scores if self.lowest else self.scores

    @property
    def precision(self) -> float:
        """The smallest step from one score to the next, 0 where they are whole numbers."""
        return torch.finfo(self.scores.dtype).eps if self.scores.is_floating_point() else 0.0


@dataclass(frozen=True)
class ChoiceAt:
    """Which call of a forward pass chooses for a router.

    Attributes:
        module: its name.
        number: of the call, among those that choose from the module's output, or that it makes itself.
        inside: the module makes the call itself.
    """

    module: str
    number: int
    inside: bool


@dataclass(frozen=True)
class SeenChoice:
    """What was chosen for a router: by one call, or by several that choose one expert each.

    Attributes:
        locations: where the calls are.
        calls: what they chose.
    """

    locations: tuple[ChoiceAt, ...]
    calls: tuple[HookedChoice, ...]

    @property
    def experts(self) -> Tensor:
        """Those chosen, ``(..., K)``, or all in order where one call sorts them."""
        return torch.cat([call.experts for call in self.calls], -1)

    @property
    def ranked(self) -> Tensor:
        """Scores ``(..., E)`` of which the highest are chosen."""
        return self.calls[0].ranked

    @property
    def precision(self) -> float:
        """The smallest step from one score to the next."""
        return self.calls[0].precision


# Given a call, returns the experts (..., K) that it is to choose.
Force = Callable[[HookedChoice], Tensor]


class Watch(TorchFunctionMode):
    """Follow the outputs of modules to the operations that choose from them.

    Args:
        forced: choices that calls are to return; where a call is forced, ``calls`` has what it returned.
        stop_at: the last call: after it the forward pass ends.

    Attributes:
        calls: the choosing calls by the module they choose from, or that makes them: ``(module, inside)``.
        wide: outputs ``(..., E)`` of modules by their names: the last size of each.
    """

    def __init__(
        self, *, forced: Mapping[ChoiceAt, Force] | None = None, stop_at: ChoiceAt | None = None
    ) -> None:
        super().__init__()
        self.calls: dict[tuple[str, bool], list[HookedChoice]] = {}
        self.wide: dict[str, int] = {}
        self._forced = forced or {}
        self._stop_at = stop_at
        self._running: list[str] = []
        # The tensors themselves are kept, or another might get the same id.
        self._followed: dict[int, tuple[Tensor, ScoresOrigin]] = {}

    def enter(self, name: str) -> None:
        """Take note that a module begins."""
        self._running.append(name)

    def leave(self, name: str, output: Any) -> None:
        """Take note of what a module returned, unless it handed on what one inside it gave."""
        if name in self._running:  # it is not where its forward was replaced, or where one before it failed
            del self._running[self._running.index(name) :]
        for value in tensors_of(output):
            # The innermost module keeps the tensor: an outer one that returns it unchanged is not its source.
            if value.ndim >= 2 and value.shape[-1] > 1 and id(value) not in self._followed:
                self._followed[id(value)] = value, ScoresOrigin(frozenset([name]))
                self.wide[name] = value.shape[-1]

    def choice(self, locations: Sequence[ChoiceAt]) -> SeenChoice | None:
        """Return what the calls at these locations chose; None where one is missing."""
        calls = []
        for location in locations:
            of_module = self.calls.get((location.module, location.inside), [])
            if location.number >= len(of_module):
                return None
            calls.append(of_module[location.number])
        return SeenChoice(tuple(locations), tuple(calls))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and record its effect on tensors that are followed."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # "log_softmax", "__radd__" and "masked_fill_" are one operation each, with or without underscores.
        name = getattr(func, "__name__", "").replace("_", "")
        if name in _CHOOSING:
            return self._record_choice(name, args, kwargs, result)
        if name in _KEEPING:
            self._follow(name, [*args, *kwargs.values()], result)
        return result

    def _record_choice(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Record a call that may choose experts; returns its result, or what it is to return."""
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or scores.ndim == 0:
            return result
        origin = self._followed.get(id(scores), (None, None))[1]
        # Outside of all modules and of unknown origin: no router's.
        if origin is None and not self._running:
            return result
        call = _call(name, scores, list(args[1:]), kwargs, result, origin)
        if call is None:
            return result
        # Copied: what comes after may write into them.
        call = replace(call, experts=call.experts.clone(), scores=call.scores.clone())
        of = [(module, False) for module in (origin.modules if origin else ())]
        locations = []
        # A call belongs to the module whose output it chooses from, and to all modules that are running.
        for module, inside in of + [(module, True) for module in self._running]:
            calls = self.calls.setdefault((module, inside), [])
            calls.append(call)
            locations.append(ChoiceAt(module, len(calls) - 1, inside))
        for location in locations:
            if location in self._forced and call.along_experts:
                result = _with_experts(call, self._forced[location](call), result)
        # Nothing after the last choice is needed, so the rest of the pass is skipped.
        if self._stop_at in locations:
            raise PassEnd
        return result

    def _follow(self, name: str, arguments: list[Any], result: Any) -> None:
        if not isinstance(result, Tensor) or result.ndim == 0:
            return
        origins = [
            self._followed[id(value)][1]
            for value in arguments
            if isinstance(value, Tensor)
            and id(value) in self._followed
            # If the last axis has another size, it no longer holds one number per expert.
            and value.shape[-1] == result.shape[-1]
        ]
        if origins:
            modules = frozenset().union(*(origin.modules for origin in origins))
            activation = next(
                (origin.activation for origin in origins if origin.activation), _ACTIVATIONS.get(name)
            )
            self._followed[id(result)] = result, ScoresOrigin(modules, activation)


def _call(
    name: str,
    scores: Tensor,
    positional: list[Any],
    kwargs: dict[str, Any],
    result: Any,
    origin: ScoresOrigin | None,
) -> HookedChoice | None:
    """Return what a call chose; None where it is a maximum over everything, or of two tensors."""
    # Arguments by position, in the order of torch's signatures: topk(k, dim, largest), sort(dim, descending).
    count = (kwargs.get("k") or positional.pop(0)) if name == "topk" else None
    along = kwargs.get(
        "dim", positional[0] if positional else (-1 if name in ("topk", "sort", "argsort") else None)
    )
    if not isinstance(along, int) or isinstance(along, bool):
        return None
    experts = result if isinstance(result, Tensor) else result[1]
    # Not along the last axis: experts may choose tokens here.
    if along % scores.ndim != scores.ndim - 1:
        return HookedChoice(name, count, experts, scores, origin, along_experts=False)
    is_best = name in ("argmax", "max")
    if is_best and experts.ndim < scores.ndim:
        experts = experts.unsqueeze(-1)
    is_ascending = count is None and not is_best and not _is_descending(positional, kwargs)
    if is_ascending:
        experts = experts.flip(-1)
    is_lowest = name == "topk" and not kwargs.get("largest", positional[1] if len(positional) > 1 else True)
    return HookedChoice(name, 1 if is_best else count, experts, scores, origin, is_ascending, is_lowest)


def _is_descending(positional: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("descending", len(positional) > 1 and positional[1]))


def _with_experts(call: HookedChoice, experts: Tensor, result: Any) -> Any:
    """Return what a call would return had it chosen ``experts`` ``(..., K)``; others follow by their scores."""
    by_score = call.ranked.argsort(dim=-1, descending=True)
    ranks = torch.arange(by_score.shape[-1], device=by_score.device).expand_as(by_score)
    location = torch.empty_like(by_score).scatter(-1, by_score, ranks + by_score.shape[-1])
    # The forced experts come first, in their order; all others follow behind by their scores.
    location = location.scatter(-1, experts.long(), ranks[..., : experts.shape[-1]])
    order = location.argsort(-1)[..., : call.count]
    if call.ascending:
        order = order.flip(-1)
    values = call.scores.gather(-1, order)
    before = result if isinstance(result, Tensor) else result[1]
    order, values = order.reshape(before.shape), values.reshape(before.shape)
    return order if isinstance(result, Tensor) else type(result)((values, order))


@contextmanager
def watching(net: nn.Module, watch: Watch, names: Collection[str] | None = None) -> Iterator[Watch]:
    """Show ``watch`` the outputs of the modules of these names (None = all), and the operations on them."""

    def before(name: str) -> Callable[..., None]:
        return lambda _module, _arguments: watch.enter(name)

    def after(name: str) -> Callable[..., None]:
        return lambda _module, _arguments, output: watch.leave(name, output)

    if names is None:
        names = [name for name, _ in net.named_modules() if name]
    with ExitStack() as stack:
        for name in names:
            module = net.get_submodule(name)
            stack.callback(module.register_forward_pre_hook(before(name)).remove)
            stack.callback(module.register_forward_hook(after(name)).remove)
        stack.enter_context(watch)
        yield watch


def tensors_of(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a module returned, however nested."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list):
        for value in output:
            yield from tensors_of(value)
    elif isinstance(output, Mapping):
        yield from tensors_of(list(output.values()))
