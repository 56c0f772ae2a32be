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

from moeprobe.adapters.huggingface.outputs import Choice, Fired, choice_among
from moeprobe.adapters.huggingface.routers import Layer
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.routing.repeated import check_sizes, repeat

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
        if found is not None:
            check_sizes(name, found, num_experts=reader.num_experts, top_k=reader.top_k)


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
        assert own.weights is not None
        new_index, new_weights = repeat(
            reader.gates(logits, own), own.selected, own.weights, wanted, name, replayed=gates == "replayed"
        )
        new = {
            id(index): new_index.to(index.dtype).reshape(index.shape),
            id(weights): new_weights.to(weights.dtype).reshape(weights.shape),
        }
        put = [new.get(id(value), value) for value in args]
        return tuple(put), {key: new.get(id(value), value) for key, value in kwargs.items()}

    stack.callback(layer.module.register_forward_hook(keep).remove)
    stack.callback(experts.register_forward_pre_hook(exchange, with_kwargs=True).remove)


def replayed_log_probabilities_of(
    adapter: Any, layers: Mapping[str, Layer], texts: Any, routing: RoutingTrace, *, gates: str
) -> Tensor:
    """Return the log-probabilities of an adapter's model while its layers repeat a routing; as ``routing.Rerouted``."""
    check_replay(layers, list(routing.layers), routing)
    with torch.inference_mode(), replaying(layers, routing, gates=gates):
        found: Tensor = adapter.log_probabilities(texts)
    return found
