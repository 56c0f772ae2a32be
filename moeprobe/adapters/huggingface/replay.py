"""Let the experts of a model of ``transformers`` get choices that were made elsewhere.

A block calls its experts with the tokens, the numbers of the chosen experts and their weights. Where these stand is
found as the choice is (see ``outputs``): whole numbers ``(N, K)`` beside weights of the same shape. They are exchanged
on the way in, so the model's own code does all the rest. Where a router hands its choice on in another form, what it
gives out is exchanged (``exchange``).

Axes: B texts, T tokens, N = B·T, E experts, K choices.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.huggingface import exchange
from moeprobe.adapters.huggingface.heads import NEXT_TOKEN, Head
from moeprobe.adapters.huggingface.outputs import Fired, RouterChoice, choice_among
from moeprobe.adapters.huggingface.routers import RouterLayer
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.routing.repeated import check_sizes, repeat

_FORMS = ("indices", "experts")
# Scores that are turned into probabilities at once.
SCORES_AT_ONCE = 2**24


def check_replay(
    layers: Mapping[str, RouterLayer], names: list[str], routing: RoutingTrace | None = None
) -> None:
    """Raise ``UserError`` unless the named layers can be made to repeat choices, and a routing is of their sizes."""
    for name in names:
        layer = layers[name]
        reader = layer.reader
        assert reader is not None
        cause = ""
        if reader.form not in exchange.FORMS and (layer.experts is None or reader.form not in _FORMS):
            cause = "does not hand numbers and weights of experts on in a known way"
        elif reader.always_idle:
            cause = "leaves experts that every token chose next to no weight, as logits that are too large do"
        elif reader.gate == "weights":
            cause = "weighs experts by no known function of its logits, so other experts have no weight"
        elif not reader.has_weight_rule:
            cause = "weighs experts by more than its own gates, such as the share of other experts"
        if cause:
            raise UserError(
                f"{name} ({type(layer.module).__name__}) {cause}; it cannot be made to repeat a choice."
            )
        layer_routing = None if routing is None else routing.layers[name]
        if layer_routing is not None:
            check_sizes(name, layer_routing, num_experts=reader.num_experts, top_k=reader.top_k)


@contextmanager
def replaying(layers: Mapping[str, RouterLayer], routing: RoutingTrace, *, gates: str) -> Iterator[None]:
    """Let these layers repeat a routing, token by token; a token without a choice in it chooses as ever.

    ``gates``: "recomputed" weighs the chosen experts as the router weighs them for its present input, "replayed" as
    the routing says.

    Raises:
        UserError: a layer did not fire once, or weights follow no rule that is known.
    """
    counts = dict.fromkeys(routing.layers, 0)
    with ExitStack() as stack:
        for name, layer_routing in routing.layers.items():
            _replay(layers[name], layer_routing, stack, counts, name, gates=gates)
        yield
    for name, count in counts.items():
        if count != 1:
            raise UserError(f"The layer {name} ran {count} times in one pass; once is expected.")


def _replay(
    layer: RouterLayer,
    layer_routing: LayerRouting,
    stack: ExitStack,
    counts: dict[str, int],
    name: str,
    *,
    gates: str,
) -> None:
    reader, experts = layer.reader, layer.experts
    assert reader is not None
    fired: list[Tensor] = []

    def new_choice(
        logits: Tensor, index: Tensor, weights: Tensor, processed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return experts and weights ``(N, K)`` in place of the router's own."""
        current = RouterChoice(index, processed, weights)
        new_index, new_weights = repeat(
            reader.gates(logits, current), index, weights, layer_routing, name, replayed=gates == "replayed"
        )
        if reader.constant_weight is not None:
            # However small the gate: divided by itself it is one.
            new_weights = torch.full_like(new_weights, reader.constant_weight)
        return new_index, new_weights

    def keep(router: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        fired.append(reader.logits(Fired(output if isinstance(output, tuple) else (output,))))

    def exchange_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        counts[name] += 1
        if len(fired) != counts[name]:
            return None
        logits = fired[-1]
        pair = choice_among((*args, *kwargs.values()), *logits.shape)
        if pair is None:
            raise UserError(f"The experts of {name} get no numbers of experts, so no choice can be repeated.")
        index, weights = pair
        flat = weights.reshape(len(logits), -1)
        new_index, new_weights = new_choice(logits, index.reshape(len(logits), -1), flat, flat != 0)
        new = {
            id(index): new_index.to(index.dtype).reshape(index.shape),
            id(weights): new_weights.to(weights.dtype).reshape(weights.shape),
        }
        put = [new.get(id(value), value) for value in args]
        return tuple(put), {key: new.get(id(value), value) for key, value in kwargs.items()}

    def exchange_outputs(router: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        counts[name] += 1
        outputs = output if isinstance(output, tuple) else (output,)
        router_output = Fired(outputs)
        logits, choice = reader.logits(router_output), reader.choice(router_output)
        new = None
        if choice.weights is not None:
            pair = new_choice(logits, choice.selected.long(), choice.weights.float(), choice.processed)
            new = exchange.exchange_choice(reader, outputs, *pair)
        if new is None:
            raise UserError(
                f"The router of {name} gives out its choice in no known form, so none can be repeated."
            )
        return new if isinstance(output, tuple) else new[0]

    if reader.form in exchange.FORMS:
        stack.callback(layer.module.register_forward_hook(exchange_outputs).remove)
        return
    assert experts is not None
    stack.callback(layer.module.register_forward_hook(keep).remove)
    stack.callback(experts.register_forward_pre_hook(exchange_inputs, with_kwargs=True).remove)


# Passes that are taken up at the block of a router: the blocks before it return their input, and the block gets what it
# got in the pass that is resumed. Masks and positions are computed anew, which costs next to nothing.


def block_list(body: nn.Module, layer: RouterLayer) -> tuple[nn.ModuleList, int] | None:
    """Return the list of blocks that a router is in, and the number of its block; None where it is in no list."""
    path = next(name for name, module in body.named_modules() if module is layer.module)
    parts = path.split(".")
    for depth, part in enumerate(parts):
        holder = body.get_submodule(".".join(parts[:depth]))
        if isinstance(holder, nn.ModuleList):
            return holder, int(part)
    return None


def blocks_until(body: nn.Module, layer: RouterLayer) -> list[nn.Module]:
    """Return the blocks of a model up to the one that a router is in; empty where it is in no list of blocks."""
    holder = block_list(body, layer)
    return [] if holder is None else list(holder[0])[: holder[1] + 1]


@contextmanager
def entering(body: nn.Module, layers: Mapping[str, RouterLayer]) -> Iterator[dict[str, Tensor]]:
    """Collect what enters the block of each layer ``(B, T, D)`` in a pass; layers in no list of blocks are left out."""
    hidden: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    with ExitStack() as stack:
        for name, layer in layers.items():
            blocks = blocks_until(body, layer)
            if blocks:
                stack.callback(blocks[-1].register_forward_pre_hook(keep(name), with_kwargs=True).remove)
        yield hidden


@contextmanager
def resuming(body: nn.Module, layer: RouterLayer, hidden: Tensor) -> Iterator[None]:
    """Let passes begin at the block that a router is in, with ``hidden`` ``(B, T, D)`` entering it."""
    *before, block = blocks_until(body, layer)

    def skip(*args: Any, **kwargs: Any) -> Any:
        return args[0] if args else kwargs["hidden_states"]

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    with ExitStack() as stack:
        for earlier in before:
            # On the object, where it hides the method of its class until it is taken off again.
            # One may be there already, which brings weights from the disk.
            previous = vars(earlier).get("forward")
            earlier.forward = skip
            stack.callback(_restore_forward, earlier, previous)
        stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
        yield


def _restore_forward(module: nn.Module, previous: Callable[..., Any] | None) -> None:
    if previous is None:
        del module.forward
    else:
        module.forward = previous


# The size of a language model's embeddings, in which noise is measured, and noise added to them.


def root_mean_square(embedding: Any, device: torch.device) -> float:
    """Return the root mean square of the embeddings of all tokens, as the embedding gives them to ids on a device."""
    number, width = embedding.weight.shape
    ids = torch.arange(number, device=device)
    with torch.inference_mode():
        squares = [embedding(part).double().square().sum() for part in ids.split(4096)]
    return float((sum(squares) / (number * width)) ** 0.5)


@contextmanager
def noise_added(embedding: nn.Module, texts: TokenBatch, *, unit: float) -> Iterator[None]:
    """Add the noise of texts, in units of ``unit``, to what an embedding gives."""
    if texts.noise is None or texts.sigma is None:
        yield
        return
    noise = texts.noise * (texts.sigma * unit)[:, None, None]

    def add(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + noise.to(output.dtype)

    handle = embedding.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


# How probable a language model finds the tokens of texts.


def check_writes(head: Head) -> None:
    """Raise ``UserError`` where a model gives no scores of the next token."""
    if head.predicts != NEXT_TOKEN:
        raise UserError(
            f"The model predicts {head.predicts} and gives no scores of the next token, so it cannot say how probable "
            "a text is. Choose a model that writes texts."
        )


def log_probabilities(run: Callable[[TokenBatch], Any], head: Head, texts: TokenBatch) -> Tensor:
    """Return the natural logarithm of each token's probability ``(B, T)``; see ``routing.Scored``.

    Raises:
        UserError: the model gives no scores of tokens, as a classifier or the encoder of a model with two halves.
    """
    scores = score_tokens(logits_of_all(run, head, texts)[:, :-1], texts.ids[:, 1:])
    log_probs = torch.full(texts.ids.shape, float("nan"), device=scores.device)
    log_probs[:, 1:] = scores.masked_fill(~(texts.present[:, 1:] & texts.present[:, :-1]), float("nan"))
    return log_probs


def logits_of_all(run: Callable[[TokenBatch], Any], head: Head, texts: TokenBatch) -> Tensor:
    """Return the scores of the token after each token ``(B, T, V)``; errors as of ``log_probabilities``."""
    check_writes(head)
    logits: Tensor = run(texts).logits.to(texts.ids.device)
    if logits.shape[:2] != texts.ids.shape:
        raise UserError(
            f"The model gives scores {tuple(logits.shape)}, not a row for each token of {tuple(texts.ids.shape)}."
        )
    return logits


def score_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the natural logarithm of the probability of tokens ``(B, T)`` under logits ``(B, T, V)``, in float32.

    Only some tokens' scores are widened at once, since all of them may take more memory than the model.
    """
    count = max(SCORES_AT_ONCE // (logits.shape[0] * logits.shape[-1]), 1)
    log_probs = torch.empty(tokens.shape, device=logits.device)
    for start in range(0, tokens.shape[1], count):
        part = slice(start, start + count)
        ids = tokens[:, part, None]
        log_probs[:, part] = logits[:, part].float().log_softmax(-1).gather(-1, ids)[..., 0]
    return log_probs
