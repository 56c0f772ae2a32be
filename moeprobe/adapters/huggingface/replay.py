"""Let the experts of a model of ``transformers`` get choices that were made elsewhere.

A block calls its experts with the tokens, the numbers of the chosen experts and their weights. Where these stand is
found as the choice is (see ``outputs``): whole numbers ``(N, K)`` beside weights of the same shape. They are exchanged
on the way in, so the model's own code does all the rest. A router that hands its choice on in another form cannot be
made to repeat one.

Axes: B texts, T tokens, N = B·T, E experts, K choices.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.huggingface.outputs import Choice, Fired, Reader, choice_among
from moeprobe.adapters.huggingface.routers import Layer
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting, RoutingTrace

# By how much weights may miss a rule that they follow but for rounding (to bfloat16).
_TOLERANCE = 2e-2
_FORMS = ("indices", "experts")


def check_replay(layers: Mapping[str, Layer], names: list[str], routing: RoutingTrace | None = None) -> None:
    """Raise ``UserError`` unless the named layers can be made to repeat choices, and a routing is of their sizes."""
    for name in names:
        layer = layers[name]
        reader = layer.reader
        assert reader is not None
        if layer.experts is None or reader.form not in _FORMS or reader.gate == "weights":
            raise UserError(
                f"{name} ({type(layer.module).__name__}) does not hand numbers and weights of experts on in a known "
                "way, so it cannot be made to repeat a choice."
            )
        found = None if routing is None else routing.layers[name]
        if found is not None and (found.num_experts, found.top_k) != (reader.num_experts, reader.top_k):
            raise UserError(
                f"The routing of {name} chooses {found.top_k} of {found.num_experts} experts, and the model "
                f"{reader.top_k} of {reader.num_experts}: it is of another model."
            )


@contextmanager
def replaying(layers: Mapping[str, Layer], routing: RoutingTrace, *, gates: str) -> Iterator[None]:
    """Let these layers repeat a routing, token by token; a token without a choice in it chooses as ever.

    ``gates``: "recomputed" weighs the chosen experts as the router weighs them for its present input, "replayed" as
    the routing says.

    Raises:
        UserError: a layer did not fire once, or weights follow no rule that is known.
    """
    counts = dict.fromkeys(routing.layers, 0)
    with ExitStack() as stack:
        for name, wanted in routing.layers.items():
            _replay(layers[name], wanted, stack, counts, name, gates=gates)
        yield
    for name, count in counts.items():
        if count != 1:
            raise UserError(f"The experts of {name} ran {count} times in one pass; once is expected.")


def _replay(
    layer: Layer, wanted: LayerRouting, stack: ExitStack, counts: dict[str, int], name: str, *, gates: str
) -> None:
    reader, experts = layer.reader, layer.experts
    assert reader is not None
    assert experts is not None
    fired: list[Tensor] = []

    def keep(router: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        fired.append(reader.logits(Fired(outputs)))

    def exchange(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        counts[name] += 1
        if len(fired) != counts[name]:
            return None
        logits = fired[-1]
        pair = choice_among((*args, *kwargs.values()), *logits.shape)
        if pair is None:
            raise UserError(f"The experts of {name} get no numbers of experts, so no choice can be repeated.")
        index, weights = pair
        own = Choice(
            index.reshape(len(logits), -1),
            weights.reshape(len(logits), -1) != 0,
            weights.reshape(len(logits), -1),
        )
        new_index, new_weights = _repeated(reader, logits, own, wanted, name, gates=gates)
        new = {
            id(index): new_index.to(index.dtype).reshape(index.shape),
            id(weights): new_weights.to(weights.dtype).reshape(weights.shape),
        }
        put = [new.get(id(value), value) for value in args]
        return tuple(put), {key: new.get(id(value), value) for key, value in kwargs.items()}

    stack.callback(layer.module.register_forward_hook(keep).remove)
    stack.callback(experts.register_forward_pre_hook(exchange, with_kwargs=True).remove)


def _repeated(
    reader: Reader, logits: Tensor, own: Choice, wanted: LayerRouting, name: str, *, gates: str
) -> tuple[Tensor, Tensor]:
    """Return numbers and weights ``(N, K)`` for the experts."""
    assert own.weights is not None
    selected = wanted.selected.to(logits.device).long().flatten(0, 1)
    if len(selected) != len(logits):
        raise UserError(
            f"The routing of {name} is of {len(selected)} tokens, and the batch has {len(logits)}."
        )
    chosen = (selected >= 0) & wanted.processed.to(logits.device).flatten(0, 1)
    known = chosen.any(-1, keepdim=True)
    values = reader.gates(logits, own)
    index = selected.clamp_min(0)
    source = values
    if gates == "replayed":
        source = wanted.gates.to(logits.device).float().flatten(0, 1)
    taken = source.gather(1, index).masked_fill(~chosen, 0)
    weights = _weigh(taken, own.weights.float(), values.gather(1, own.selected.long().clamp_min(0)), name)
    return index.where(known, own.selected.long()), weights.where(known, own.weights.float())


def _weigh(taken: Tensor, own: Tensor, gates: Tensor, name: str) -> Tensor:
    """Return weights ``(N, K)`` for gates ``taken``, by the rule that makes the router's ``own`` of its ``gates``.

    It is a multiple of the gates, or the gates brought to one sum for all tokens.
    """
    ratio, total = own.sum(-1) / gates.sum(-1).clamp_min(1e-12), own.sum(-1)
    spread = [
        float((value - value.mean()).abs().max() / value.mean().abs().clamp_min(1e-12))
        for value in (ratio, total)
    ]
    if min(spread) > _TOLERANCE:
        raise UserError(f"The weights of {name} follow from its gates by no rule that is known.")
    if spread[0] <= spread[1]:
        scale = ratio.mean()
        # A factor of one but for rounding is one, so that nothing is rounded again.
        return taken if abs(float(scale) - 1) < 1e-5 else taken * scale
    sums = taken.sum(-1, keepdim=True)
    brought = taken / sums.where(sums > 0, 1)
    scale = total.mean()
    return brought if abs(float(scale) - 1) < 1e-5 else brought * scale


def replayed_log_probabilities_of(
    adapter: Any, layers: Mapping[str, Layer], texts: Any, routing: RoutingTrace, *, gates: str
) -> Tensor:
    """Return the log-probabilities of an adapter's model while its layers repeat a routing; as ``routing.Rerouted``."""
    check_replay(layers, list(routing.layers), routing)
    with torch.inference_mode(), replaying(layers, routing, gates=gates):
        found: Tensor = adapter.log_probabilities(texts)
    return found
