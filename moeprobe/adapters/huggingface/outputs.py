"""The routers of a model of ``transformers``, and what their outputs say: logits, the router's own choice, and weights.

Nothing here knows a family of models by name. The library says of which class ``router_logits`` are recorded, and which
of its outputs they are; so routers are found by class, and watched while they fire. The rest is read by its form, once,
from a pass over a fixed sequence of tokens:

* *indices*: whole numbers ``(N, K)`` with weights of the same shape, of the router itself or handed to the experts;
* *dense*: a weight or a mark ``(N, E)`` for each expert, 0 where it did not get the token;
* *sorted*: the choices sorted by expert: a permutation of N·K places, and how many each expert got.

The choice is never recomputed where the router says it: biases and groups would be missed.

Axes: N tokens of a batch (texts one after the other), E experts, K choices.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError, option

# Of a router whose weights are in proportion to one of these, its gates are that function of the logits.
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "probabilities": lambda logits: logits,
    "sigmoid": lambda logits: logits.sigmoid(),
    "sqrt_softplus": lambda logits: torch.nn.functional.softplus(logits).sqrt(),
}
# Weights may have been rounded to bfloat16.
_TOLERANCE = 2e-2
# A smaller weight is next to nothing, and in proportion to anything.
_LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class Fired:
    """One firing of a router.

    Attributes:
        outputs: of the router, a tuple in any case.
        inputs: its input tensors other than the tokens.
        experts: inputs of its experts, if it has a sibling module of experts.
    """

    outputs: tuple[Any, ...]
    inputs: tuple[Tensor, ...] = ()
    experts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class RouterChoice:
    """One choice: experts ``(N, K)``, -1 = none; processed flags ``(N, K)``; weights ``(N, K)`` if given."""

    selected: Tensor
    processed: Tensor
    weights: Tensor | None

    @property
    def complete(self) -> Tensor:
        """Which tokens have all K experts, each with a weight that says something of its gate ``(N,)``."""
        is_weighed = True if self.weights is None else self.weights > _LEAST_WEIGHT
        return (self.processed & is_weighed).all(1)


@dataclass(frozen=True)
class OutputReader:
    """Functions that read the outputs of one router.

    Attributes:
        logits_at: which output are its logits.
        form: indices, experts (indices handed to the experts), dense or sorted.
        top_k: K.
        num_experts: E.
        gate: which function of the logits its gates are; "weights": none that is known, so its weights themselves.
        bias: ``(E,)`` added to the gates before the choice, None = nothing.
        always_idle: whether each token that it was learned from had an expert of next to no weight in its choice.
    """

    logits_at: int
    form: str
    top_k: int
    num_experts: int
    gate: str = "weights"
    bias: Tensor | None = None
    always_idle: bool = False

    @property
    def gates_sum_to_one(self) -> bool:
        """Whether a token's gates are a distribution over the experts."""
        return self.gate in ("softmax", "probabilities")

    def logits(self, fired: Fired) -> Tensor:
        """Return the logits ``(N, E)`` in float32."""
        logits: Tensor = fired.outputs[self.logits_at]
        return logits.reshape(-1, self.num_experts).float()

    def choice(self, fired: Fired) -> RouterChoice:
        """Return the router's own choice."""
        choice = _FORMS[self.form](fired, self.logits(fired), self.logits_at, self.top_k)
        assert choice is not None
        return choice

    def gates(self, logits: Tensor, choice: RouterChoice) -> Tensor:
        """Return the gates ``(N, E)``."""
        if self.gate != "weights":
            return _GATES[self.gate](logits)
        weights = choice.processed.float() if choice.weights is None else choice.weights.float()
        return torch.zeros_like(logits).scatter_add(1, choice.selected.long().clamp_min(0), weights)

    def scores(self, logits: Tensor, gates: Tensor) -> Tensor | None:
        """Return what the choice is read off ``(N, E)``; None where that is the gates."""
        if self.gate == "weights":
            return logits
        return None if self.bias is None else gates + self.bias.float().reshape(-1)


def learn(fired: Fired, *, logits_at: int, candidates: Sequence[Tensor]) -> OutputReader | None:
    """Return how a router is read, learned from one firing; None where it does not say what it chose.

    ``candidates`` are its parameters and buffers, of which one may be a bias of the choice.
    """
    output = fired.outputs[logits_at]
    if not isinstance(output, Tensor) or output.ndim < 2:
        return None
    num_experts = output.shape[-1]
    logits = output.reshape(-1, num_experts).float()
    choices = ((form, read(fired, logits, logits_at, None)) for form, read in _FORMS.items())
    form, choice = next(((form, choice) for form, choice in choices if choice is not None), ("", None))
    if choice is None:
        return None
    gate = _gate(logits, choice)
    bias = None if gate == "weights" else _bias(_GATES[gate](logits), choice, [*candidates, *fired.inputs])
    always_idle = not bool(choice.complete.any())
    return OutputReader(logits_at, form, choice.selected.shape[1], num_experts, gate, bias, always_idle)


def _gate(logits: Tensor, choice: RouterChoice) -> str:
    """Return the function of the logits that the weights are in proportion to, token by token; or "weights"."""
    if choice.weights is None:
        return "weights"
    complete = choice.complete
    weights, selected = choice.weights[complete].float(), choice.selected[complete].long().clamp_min(0)
    errors = {}
    for name, function in _GATES.items():
        values = function(logits[complete]).gather(1, selected)
        if name == "probabilities" and not torch.allclose(
            logits.sum(-1), torch.ones(()).to(logits), atol=1e-3
        ):
            continue
        ratio = weights / values.clamp_min(_LEAST_WEIGHT)
        # A single weight is in proportion to anything: it must be the gate itself.
        middle = ratio.mean(1, keepdim=True) if choice.selected.shape[1] > 1 else torch.ones_like(ratio)
        errors[name] = float((ratio / middle - 1).abs().mean()) if len(ratio) else float("inf")
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < _TOLERANCE else "weights"


def _bias(gates: Tensor, choice: RouterChoice, candidates: Sequence[Tensor]) -> Tensor | None:
    """Return which candidate ``(E,)``, added to the gates, explains more of the choice than the gates alone do.

    Of a choice within groups no scores explain all.
    """
    selected = choice.selected.long()

    def explained(scores: Tensor) -> float:
        best = scores.topk(selected.shape[1]).indices
        return float((best[:, :, None] == selected[:, None]).any(-1).float().mean())

    best, best_share = None, explained(gates)
    for candidate in candidates:
        if candidate.is_floating_point() and candidate.numel() == gates.shape[1] and best_share < 1:
            share = explained(gates + candidate.float().reshape(-1))
            if share > best_share:
                best, best_share = candidate, share
    return best


def _tensors(values: Sequence[Any], *, skip: int | None = None) -> list[Tensor]:
    return [value for index, value in enumerate(values) if isinstance(value, Tensor) and index != skip]


def _rows(values: Sequence[Tensor], num_tokens: int) -> list[Tensor]:
    """Return those with a row for each token, as ``(N, ...)``."""
    return [
        value.reshape(num_tokens, value.shape[-1])
        for value in values
        if value.ndim >= 2 and value.shape[-1] and value.numel() == num_tokens * value.shape[-1]
    ]


def _find_indices(
    values: Sequence[Tensor], num_tokens: int, num_experts: int
) -> tuple[Tensor, Tensor] | None:
    """Return indices and weights ``(N, K)`` among outputs, None if there are none."""
    rows = _rows(values, num_tokens)
    for index in rows:
        if index.is_floating_point() or index.dtype == torch.bool or index.shape[1] > num_experts:
            continue
        has_all_experts = index.shape[1] == num_experts
        if (
            has_all_experts
            and not (index.sort(-1).values == torch.arange(num_experts, device=index.device)).all()
        ):
            continue  # marks, not numbers
        for weights in rows:
            if weights.is_floating_point() and weights.shape == index.shape:
                return index, weights
    return None


def choice_among(values: Sequence[Any], num_tokens: int, num_experts: int) -> tuple[Tensor, Tensor] | None:
    """Return, of what experts are called with, the numbers of experts and their weights; None where there are none."""
    tensors = _tensors(values)
    pairs = ((index, weights) for index in tensors for weights in tensors if not index.is_floating_point())
    return next((pair for pair in pairs if _find_indices(pair, num_tokens, num_experts)), None)


def _find_dense(values: Sequence[Tensor], num_tokens: int, num_experts: int) -> tuple[Tensor, bool] | None:
    """Return what each expert got of each token ``(N, E)``, and whether that is a weight and not a mark."""
    wide = [value for value in _rows(values, num_tokens) if value.shape[1] == num_experts]
    for value in sorted(wide, key=lambda value: not value.is_floating_point()):
        if bool((value >= 0).all()) and bool((value == 0).any()):
            return value, value.is_floating_point()
    return None


def _of_indices(indices_and_weights: tuple[Tensor, Tensor] | None) -> RouterChoice | None:
    if indices_and_weights is None:
        return None
    index, weights = indices_and_weights
    # What weighs exactly nothing is no choice: "no expert" is encoded so.
    processed = weights != 0
    return RouterChoice(index.where(processed, -1), processed, weights)


def _indices(fired: Fired, logits: Tensor, logits_at: int, top_k: int | None) -> RouterChoice | None:
    return _of_indices(_find_indices(_tensors(fired.outputs, skip=logits_at), *logits.shape))


def _experts(fired: Fired, logits: Tensor, logits_at: int, top_k: int | None) -> RouterChoice | None:
    return _of_indices(_find_indices(_tensors(fired.experts), *logits.shape))


def _dense(fired: Fired, logits: Tensor, logits_at: int, top_k: int | None) -> RouterChoice | None:
    dense = _find_dense(_tensors(fired.outputs, skip=logits_at), *logits.shape)
    if top_k is None:
        top_k = 0 if dense is None else int((dense[0] != 0).sum(-1).max())
        if top_k == 0:
            return None
    if dense is None:  # every token went to all experts
        dense = torch.ones_like(logits), False
    got, weighted = dense
    selected = logits.topk(top_k).indices
    processed = got.gather(1, selected) != 0
    if weighted:
        return RouterChoice(selected, processed, got.gather(1, selected))
    single = [value for value in _rows(_tensors(fired.outputs), len(logits)) if value.shape[1] == top_k]
    return RouterChoice(
        selected, processed, next((value for value in single if value.is_floating_point()), None)
    )


def _sorted(fired: Fired, logits: Tensor, logits_at: int, top_k: int | None) -> RouterChoice | None:
    order, counts = _find_sorted(fired, *logits.shape)
    if not len(order):
        return None
    experts = torch.arange(logits.shape[1], device=order.device)
    flat = torch.empty_like(order)
    flat[order] = experts.repeat_interleave(torch.tensor(counts, device=order.device))
    selected = flat.reshape(len(logits), -1)
    weights = [
        value
        for value in _tensors(fired.outputs)
        if value.is_floating_point() and value.ndim == 1 and len(value) == len(order)
    ]
    unsorted = None
    if weights:
        unsorted = torch.empty_like(weights[0])
        unsorted[order] = weights[0]
        unsorted = unsorted.reshape(selected.shape)
    return RouterChoice(selected, torch.ones_like(selected, dtype=torch.bool), unsorted)


def _find_sorted(fired: Fired, num_tokens: int, num_experts: int) -> tuple[Tensor, list[int]]:
    """Return the permutation of the choices ``(N·K,)`` and the experts' counts; both empty where there are none."""
    for counts in fired.outputs:
        if isinstance(counts, list) and len(counts) == num_experts and sum(counts) % num_tokens == 0:
            for order in _tensors(fired.outputs):
                has_all_rows = order.ndim == 1 and not order.is_floating_point() and len(order) == sum(counts)
                if has_all_rows and bool(
                    (order.sort().values == torch.arange(len(order), device=order.device)).all()
                ):
                    return order, counts
    return torch.zeros(0, dtype=torch.int64), []


# Form -> the choice in it, of K experts for each token (None = learn how many); None where the outputs do not have it.
_FORMS: dict[str, Callable[[Fired, Tensor, int, int | None], RouterChoice | None]] = {
    "indices": _indices,
    "dense": _dense,
    "sorted": _sorted,
    "experts": _experts,
}


_NO_LIMIT = 2**30


class Stop(Exception):  # noqa: N818 — nothing went wrong: all that was asked for is there
    """The last router asked for has fired."""


@dataclass
class RouterLayer:
    """One router and how it is read."""

    module: nn.Module
    experts: nn.Module | None
    logits_at: int
    reader: OutputReader | None = None
    fired: list[Fired] = field(default_factory=list)


def watch(layer: RouterLayer, stack: ExitStack, *, stop: bool) -> None:
    """Keep what a router gives out, and what its experts get where that says what it chose."""
    wait = layer.experts is not None and (layer.reader is None or layer.reader.form == "experts")

    def keep(router: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        inputs = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, Tensor)]
        layer.fired.append(Fired(outputs, tuple(inputs)))
        if stop and not wait:
            raise Stop

    def keep_choice(experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if layer.fired:
            last = layer.fired.pop()
            layer.fired.append(Fired(last.outputs, last.inputs, (*args, *kwargs.values())))
        if stop:
            raise Stop

    stack.callback(layer.module.register_forward_hook(keep, with_kwargs=True).remove)
    if wait:
        assert layer.experts is not None
        stack.callback(layer.experts.register_forward_pre_hook(keep_choice, with_kwargs=True).remove)


def find_routers(model: nn.Module) -> dict[str, RouterLayer]:
    """Return the routers by their layer's name: instances of the classes whose logits the library records."""
    recorders: dict[type, tuple[int, str | None]] = {}
    for module in model.modules():
        declared = (getattr(type(module), "_can_record_outputs", None) or {}).get("router_logits", [])
        for recorder in declared if isinstance(declared, list) else [declared]:
            target: Any = getattr(recorder, "target_class", recorder)
            recorders[target] = (getattr(recorder, "index", 0), getattr(recorder, "layer_name", None))
    routers = {
        path: RouterLayer(module, _sibling(model, path), recorders[type(module)][0])
        for path, module in model.named_modules()
        if type(module) in recorders and (recorders[type(module)][1] or "") in path
    }
    # Where one holds another, the inner one is the router itself.
    inner = [path for path in routers if not any(candidate.startswith(f"{path}.") for candidate in routers)]
    return {name: routers[path] for name, path in zip(_short(inner), inner, strict=True)}


def _sibling(model: nn.Module, path: str) -> nn.Module | None:
    """Return the experts next to a router, None if there are none by that name."""
    parent = model.get_submodule(path.rpartition(".")[0])
    experts = getattr(parent, "experts", None)
    return experts if isinstance(experts, nn.Module) else None


def _short(paths: Sequence[str]) -> list[str]:
    """Return what layers are called: their list of blocks and the number in it; the whole path where two share it."""
    names = [_block(path) for path in paths]
    return [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


def _block(path: str) -> str:
    """``model.layers.3.mlp.gate`` -> ``layers.3``."""
    parts = path.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return path if not number else ".".join(parts[number - 1 : number + 1])


def blocks_without(model: nn.Module, routers: Sequence[nn.Module]) -> tuple[str, ...]:
    """Return the blocks, of the lists of blocks that hold the routers, that hold none."""
    ids = set(map(id, routers))
    lists = {
        path.rpartition(".")[0]: None
        for path, module in model.named_modules()
        if path.rpartition(".")[2].isdigit() and any(id(inner) in ids for inner in module.modules())
    }
    outer = [path for path in lists if not any(path.startswith(f"{candidate}.") for candidate in lists)]
    return tuple(
        f"{path.rpartition('.')[2]}.{number}"
        for path in outer
        for number, block in model.get_submodule(path).named_children()
        if not any(id(inner) in ids for inner in block.modules())
    )


def set_capacity(model: nn.Module, *, trained: bool) -> bool:
    """Lift the capacity of routers that have one, or leave it; returns whether there is a limit then.

    Raises:
        UserError: the limit is to stay, and depends on how many texts a batch holds.
    """
    limited = [module for module in model.modules() if hasattr(module, "expert_capacity")]
    for module in limited:
        # A share of the batch's tokens, where it is positive, overrides the fixed number.
        share = getattr(module, "moe_eval_capacity_token_fraction", None)
        if trained and share is not None:
            raise UserError(
                "its capacity is one for all texts of a batch together; omit "
                f"{option('trained_capacity', True, '--capacity trained')}."
            )
        if not trained:
            module.expert_capacity = _NO_LIMIT  # type: ignore[assignment]
            if share is not None:
                module.moe_eval_capacity_token_fraction = -1.0  # type: ignore[assignment]
    return trained and bool(limited)
