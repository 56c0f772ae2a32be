"""What the outputs of a router of ``transformers`` say: logits, the router's own choice, and weights.

Nothing here knows a family of models by name. The library says which output the logits are (see ``routers``). The rest
is read by its form, once, from a pass over a fixed sequence of tokens:

* *indices*: whole numbers ``(N, K)`` with weights of the same shape, of the router itself or handed to the experts;
* *dense*: a weight or a mark ``(N, E)`` for each expert, 0 where it did not get the token;
* *sorted*: the choices sorted by expert: a permutation of N·K places, and how many each expert got.

The choice is never recomputed where the router says it: biases and groups would be missed.

Axes: N tokens of a batch (texts one after the other), E experts, K choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Tried in turn: if a router's weights are proportional to one of these functions of its logits, that one is its gates.
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
# Weights that differ by less are one weight: what rounding of a division by itself leaves.
_SAME_WEIGHT = 1e-4


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
        constant_weight: of the only expert of every token, as weights divided by their sum are; None of others. Its
            gates are then the function of the logits that explains the choice, the softmax where several do.
        has_weight_rule: whether weights are one multiple of the gates, or the gates brought to one sum.
    """

    logits_at: int
    form: str
    top_k: int
    num_experts: int
    gate: str = "weights"
    bias: Tensor | None = None
    always_idle: bool = False
    constant_weight: float | None = None
    has_weight_rule: bool = True

    @property
    def gates_sum_to_one(self) -> bool:
        """Whether a token's gates are a distribution over the experts."""
        return self.gate in ("softmax", "probabilities")

    def logits(self, fired: Fired) -> Tensor:
        """Return the logits ``(N, E)`` in float32."""
        logits: Tensor = fired.outputs[self.logits_at]
        return logits.reshape(-1, self.num_experts).float()

    def preference(self, fired: Fired) -> Tensor:
        """Return what the experts of a choice are ranked by ``(N, E)``, without a choice: gates rise with logits."""
        logits = self.logits(fired)
        return logits if self.bias is None else _GATES[self.gate](logits) + self.bias.float().reshape(-1)

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
    # Routers that give no tensor of logits cannot be read by form.
    if not isinstance(output, Tensor) or output.ndim < 2:
        return None
    num_experts = output.shape[-1]
    logits = output.reshape(-1, num_experts).float()
    choices = ((form, read(fired, logits, logits_at, None)) for form, read in _FORMS.items())
    form, choice = next(((form, choice) for form, choice in choices if choice is not None), ("", None))
    if choice is None:
        return None
    biases = [*candidates, *fired.inputs]
    gate, bias = _gate(logits, choice), None
    # One weight for all tokens may still be a gate: a softmax of large logits is next to one.
    constant_weight = _constant_weight(choice) if gate == "weights" else None
    if constant_weight is not None:
        # Such weights say nothing, so the choice itself has to tell the function.
        gate, bias = _gate_of_choice(logits, choice, biases)
    elif gate != "weights":
        bias, _ = _bias(_GATES[gate](logits), choice, biases)
    always_idle = not bool(choice.complete.any())
    has_rule = gate == "weights" or constant_weight is not None or _has_rule(_GATES[gate](logits), choice)
    return OutputReader(
        logits_at,
        form,
        choice.selected.shape[1],
        num_experts,
        gate,
        bias,
        always_idle,
        constant_weight,
        has_rule,
    )


def _has_rule(gates: Tensor, choice: RouterChoice) -> bool:
    """Whether all tokens' weights are one multiple of their gates, or have one sum.

    Weights that shared experts take a part of have neither.
    """
    assert choice.weights is not None
    total = choice.weights.float().sum(-1)
    selected = gates.gather(1, choice.selected.long().clamp_min(0)).masked_fill(~choice.processed, 0).sum(-1)
    is_weighed = (total > _LEAST_WEIGHT) & (selected > _LEAST_WEIGHT)
    ratio, total = (total / selected)[is_weighed], total[is_weighed]
    spreads = [
        float((value - value.mean()).abs().max() / value.mean().clamp_min(_LEAST_WEIGHT))
        if len(value)
        else 0.0
        for value in (ratio, total)
    ]
    return min(spreads) < _TOLERANCE


def _constant_weight(choice: RouterChoice) -> float | None:
    """Return the weight of each token's only expert, if all tokens have the same; otherwise None."""
    if choice.weights is None or choice.selected.shape[1] > 1:
        return None
    weights = choice.weights[choice.complete].float()
    if len(weights) < 2 or float((weights - weights[0]).abs().max()) > _SAME_WEIGHT * float(weights[0]):
        return None
    return float(weights.mean())


def _gate_of_choice(
    logits: Tensor, choice: RouterChoice, candidates: Sequence[Tensor]
) -> tuple[str, Tensor | None]:
    """Return the function of the logits, and the bias, that explain most of a choice whose weights say nothing."""
    results: dict[str, tuple[Tensor | None, float]] = {}
    for name, function in _GATES.items():
        if name != "probabilities" or _are_probabilities(logits):
            results[name] = _bias(function(logits), choice, candidates)
    best = max(results, key=lambda name: results[name][1])
    # Probabilities are their own gates; a softmax of them would explain the choice as well.
    if "probabilities" in results and results["probabilities"][1] == results[best][1]:
        best = "probabilities"
    return best, results[best][0]


def _gate(logits: Tensor, choice: RouterChoice) -> str:
    """Return the function of the logits that the weights are in proportion to, token by token; or "weights"."""
    if choice.weights is None:
        return "weights"
    complete = choice.complete
    weights, selected = choice.weights[complete].float(), choice.selected[complete].long().clamp_min(0)
    errors = {}
    for name, function in _GATES.items():
        values = function(logits[complete]).gather(1, selected)
        if name == "probabilities" and not _are_probabilities(logits):
            continue
        ratio = weights / values.clamp_min(_LEAST_WEIGHT)
        # A single weight is in proportion to anything: it must be the same multiple of the gate for all tokens.
        middle = ratio.mean(1 if choice.selected.shape[1] > 1 else 0, keepdim=True)
        errors[name] = float((ratio / middle - 1).abs().mean()) if len(ratio) else float("inf")
    # The best one must be close as well, or weights follow another rule.
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < _TOLERANCE else "weights"


def _are_probabilities(logits: Tensor) -> bool:
    """Whether each token's logits are a distribution over the experts already."""
    return bool((logits >= 0).all()) and torch.allclose(logits.sum(-1), torch.ones(()).to(logits), atol=1e-3)


def _bias(gates: Tensor, choice: RouterChoice, candidates: Sequence[Tensor]) -> tuple[Tensor | None, float]:
    """Return which candidate ``(E,)``, added to the gates, explains more of the choice than the gates alone do.

    With it comes the share of choices that are explained. No scores explain all of a choice within groups.
    """
    selected = choice.selected.long()

    def explained_share(scores: Tensor) -> float:
        best = scores.topk(selected.shape[1]).indices
        return float((best[:, :, None] == selected[:, None]).any(-1).float().mean())

    best, best_share = None, explained_share(gates)
    for candidate in candidates:
        # Only a tensor with one number per expert can be such a bias.
        if candidate.is_floating_point() and candidate.numel() == gates.shape[1] and best_share < 1:
            share = explained_share(gates + candidate.float().reshape(-1))
            if share > best_share:
                best, best_share = candidate, share
    return best, best_share


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
        # Floats, marks and wider tensors are no numbers of experts.
        if index.is_floating_point() or index.dtype == torch.bool or index.shape[1] > num_experts:
            continue
        has_all_experts = index.shape[1] == num_experts
        if (
            has_all_experts
            and not (index.sort(-1).values == torch.arange(num_experts, device=index.device)).all()
        ):
            continue  # marks, not numbers
        # Only a pair counts: numbers of experts come with weights of the same shape.
        for weights in rows:
            if weights.is_floating_point() and weights.shape == index.shape:
                return index, weights
    return None


def choice_among(values: Sequence[Any], num_tokens: int, num_experts: int) -> tuple[Tensor, Tensor] | None:
    """Return, of what experts are called with, the numbers of experts and their weights; None where there are none."""
    tensors = _tensors(values)
    pairs = ((index, weights) for index in tensors for weights in tensors if not index.is_floating_point())
    return next((pair for pair in pairs if _find_indices(pair, num_tokens, num_experts)), None)


def find_dense(values: Sequence[Tensor], num_tokens: int, num_experts: int) -> tuple[Tensor, bool] | None:
    """Return what each expert got of each token ``(N, E)``, and whether that is a weight and not a mark."""
    wide = [value for value in _rows(values, num_tokens) if value.shape[1] == num_experts]
    for value in sorted(wide, key=lambda value: not value.is_floating_point()):
        # Some zeros: a matrix without any has no choice in it.
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
    dense = find_dense(_tensors(fired.outputs, skip=logits_at), *logits.shape)
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


def _sorted_choice(fired: Fired, logits: Tensor, logits_at: int, top_k: int | None) -> RouterChoice | None:
    order, counts = find_sorted(fired.outputs, *logits.shape)
    if not len(order):
        return None
    experts = torch.arange(logits.shape[1], device=order.device)
    flat = torch.empty_like(order)
    # The counts say how many entries of the order, one after the other, belong to each expert.
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


def find_sorted(outputs: Sequence[Any], num_tokens: int, num_experts: int) -> tuple[Tensor, list[int]]:
    """Return the permutation of the choices ``(N·K,)`` and the experts' counts; both empty where there are none."""
    for counts in outputs:
        if isinstance(counts, list) and len(counts) == num_experts and sum(counts) % num_tokens == 0:
            for order in _tensors(outputs):
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
    "sorted": _sorted_choice,
    "experts": _experts,
}
