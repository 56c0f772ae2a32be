"""Let routers of a foreign module repeat choices that were made elsewhere.

Where a top-k chooses from a router's output, or inside of the router, that top-k is made to return the other experts,
with their own scores; the model's code does the rest, as it weighs its own choice. Where a router returns the numbers
of the chosen experts and their weights (``read`` says where), both are replaced in its output. Whether that rules
the output is tried on a few images: its own choices must give what they gave, others something else, and where experts
can be changed one by one they must process the tokens that they were forced on.

Axes: B images, T tokens, N = B·T tokens in the order of the module, E experts, K choices.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.hooks.factory import KEYS
from moeprobe.adapters.hooks.layer import HookedLayer
from moeprobe.adapters.hooks.module import HookedModule, check_fired, naming
from moeprobe.adapters.hooks.output import by_image, put, read
from moeprobe.adapters.hooks.watch import ChoiceAt, Force, HookedChoice, Watch, tensors_of, watching
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.routing.repeated import check_sizes, repeat

# What repeating its own choices may change by rounding, as a share of the largest value, in float32.
_ROUNDING = 1e-3
# Below it a gate is written as such a logit: that of 0 would be minus infinity.
_LEAST_GATE = 1e-30


@contextmanager
def replaying(
    hooked: HookedModule, layers: Mapping[str, HookedLayer], routing: RoutingTrace, *, gates: str
) -> Iterator[None]:
    """Let layers repeat a routing, token by token; a token without a choice in it chooses as ever.

    ``gates``: "recomputed" weighs the chosen experts as the router weighs them for its present input, "replayed" as
    the routing says.

    Raises:
        UserError: a router did not run once, the routing is of another model, or weights follow no known rule.
    """
    fired: list[str] = []
    forced: dict[ChoiceAt, Force] = {}

    def hook(layer: HookedLayer, layer_routing: LayerRouting) -> Any:
        def exchange(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            fired.append(layer.module)
            with naming(layer.module):
                call = (module, arguments, output)
                if hands_on(hooked, layer):
                    return _exchange_output(hooked, layer, layer_routing, call, gates=gates)
                return _with_gates(hooked, layer, layer_routing, call) if gates == "replayed" else output

        return exchange

    with ExitStack() as stack:
        for name, choice in routing.layers.items():
            layer = layers[name]
            module = hooked.net.get_submodule(layer.module)
            stack.callback(module.register_forward_hook(hook(layer, choice)).remove)
            if not hands_on(hooked, layer):
                forced |= forces(layer, choice)
        if forced:
            stack.enter_context(
                watching(hooked.net, Watch(forced=forced), {location.module for location in forced})
            )
        yield
    check_fired(fired, [layers[name].module for name in routing.layers])


def hands_on(hooked: HookedModule, layer: HookedLayer) -> bool:
    """Whether a router's output says what it chose, by which weights, and of which logits."""
    return isinstance(hooked.settings.read, Mapping) and layer.reads == set(KEYS)


def forces(layer: HookedLayer, routing: LayerRouting) -> dict[ChoiceAt, Force]:
    """Return a function per call of a layer that makes it choose by a routing; tokens without a choice keep theirs."""
    top_k = routing.top_k
    # One call chooses all K experts; otherwise each of K calls chooses one.
    if len(layer.choice) == 1:
        return {layer.choice[0]: partial(_experts_to_force, layer, routing, slice(0, top_k))}
    return {
        location: partial(_experts_to_force, layer, routing, slice(n, n + 1))
        for n, location in enumerate(layer.choice)
    }


def _experts_to_force(layer: HookedLayer, routing: LayerRouting, part: slice, call: HookedChoice) -> Tensor:
    """Return the experts ``(..., K)`` that a call is to choose: this part of the routing's choices."""
    top_k = routing.top_k
    expected = layer.top_k or call.count or top_k
    with naming(layer.module):
        check_sizes(layer.module, routing, num_experts=call.scores.shape[-1], top_k=expected)
        # The call may sort all experts, of which only the first ones are its choice.
        previous = call.experts[..., : part.stop - part.start]
        selected, order = _in_order(layer, routing, previous)
        is_chosen = selected >= 0
        if bool((is_chosen.any(-1) != is_chosen.all(-1)).any()):
            raise UserError(
                f"its top-k gives each token {top_k} experts; a routing that gives some fewer cannot be repeated."
            )
    forced = previous.reshape(-1, previous.shape[-1]).clone()
    forced[order] = selected[:, part].to(forced).where(is_chosen[:, part], forced[order])
    return forced.reshape(previous.shape)


def _in_order(layer: HookedLayer, routing: LayerRouting, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a routing's choices ``(N, K)`` and the rows ``(N,)`` of ``values`` ``(..., K)`` that they belong to."""
    row_numbers = torch.arange(values[..., 0].numel(), device=values.device)
    shaped = row_numbers.reshape(*values.shape[:-1], 1)
    order = by_image(shaped, len(routing.valid), layer.sequence_first).flatten(0, 1)[:, 0]
    selected = routing.selected.to(values.device).long().flatten(0, 1)
    if len(selected) != len(order):
        raise UserError(f"the routing is of {len(selected)} tokens, and the batch has {len(order)}.")
    return selected, order


def _with_gates(
    hooked: HookedModule,
    layer: HookedLayer,
    routing: LayerRouting,
    call: tuple[nn.Module, tuple[Any, ...], Any],
) -> Any:
    """Return the output of a router with the gates of a routing in it, as logits or as weights of the chosen."""
    module, arguments, output = call
    how = hooked.settings.read
    values = read(module, arguments, output, how=how)
    selected, order = _in_order(layer, routing, values["logits" if "logits" in values else "indices"])
    gates = routing.gates.to(order.device).float().flatten(0, 1)
    has_choice = (selected >= 0).any(-1, keepdim=True)
    # A recording without gates has zeros, which would silence the layer.
    if has_choice.any() and not gates.any():
        raise UserError("the routing has no gates; let them be recomputed.")
    if callable(how) or not (layer.follows or "weights" in values):
        raise UserError(
            "recorded gates cannot take the place of its own, since read does not say where the weights are; let them "
            "be recomputed."
        )
    key = "logits" if layer.follows else "weights"
    old = values[key].reshape(-1, values[key].shape[-1])
    if layer.follows:
        new = _logits(gates, layer.activation)
    else:  # in the router's own order of its choices
        experts = values["indices"].reshape(old.shape).long()[order]
        new = gates.gather(1, experts.clamp_min(0)).masked_fill(experts < 0, 0)
    written = old.clone()
    written[order] = new.to(old).where(has_choice, old[order])
    written = written.reshape(values[key].shape)
    if how is None:
        # A convolution's channels come before its places.
        return written.movedim(-1, 1) if isinstance(module, nn.Conv2d) else written
    assert isinstance(how, Mapping)
    return put(output, how[key], written)


def _logits(gates: Tensor, activation: str) -> Tensor:
    """Return logits whose softmax or sigmoid are these gates."""
    if activation == "none":
        return gates
    gates = gates.clamp_min(_LEAST_GATE)
    return gates.log() if activation == "softmax" else gates.logit()


def _exchange_output(
    hooked: HookedModule,
    layer: HookedLayer,
    layer_routing: LayerRouting,
    call: tuple[nn.Module, tuple[Any, ...], Any],
    *,
    gates: str,
) -> Any:
    """Return the output of one call of a router with other numbers and weights in it."""
    how, output, num_images = hooked.settings.read, call[2], len(layer_routing.valid)
    assert isinstance(how, Mapping)
    values = read(*call, how=how)

    def by_token(tensor: Tensor) -> Tensor:
        return by_image(tensor, num_images, layer.sequence_first).flatten(0, 1)

    current = layer.routing(values, num_images=num_images, token_local=True)
    check_sizes(layer.module, layer_routing, num_experts=current.num_experts, top_k=current.top_k)
    replacements = repeat(
        current.gates.flatten(0, 1),
        by_token(values["indices"]),
        by_token(values["weights"]),
        layer_routing,
        layer.module,
        replayed=gates == "replayed",
    )
    _, order = _in_order(layer, layer_routing, values["indices"])
    for key, new in zip(("indices", "weights"), replacements, strict=True):
        restored = torch.empty_like(new)
        restored[order] = new
        output = put(output, how[key], restored.to(values[key].dtype).reshape(values[key].shape))
    return output


def why_not_forced(
    hooked: HookedModule,
    layers: Mapping[str, HookedLayer],
    images: Tensor,
    routings: Mapping[str, LayerRouting],
    *,
    is_random: bool,
) -> dict[str, str]:
    """Return by layer why its choice cannot be forced, in words that follow the name of its router; none if it can.

    Args:
        hooked: the model.
        layers: its layers.
        images: to be tried.
        routings: of these images.
        is_random: the model draws random numbers at evaluation.
    """
    if is_random:
        reason = "is in a model that draws random numbers at evaluation, so a repeated choice shows nothing"
        return dict.fromkeys(layers, reason)
    before = outputs(hooked, images)
    return {
        name: reason
        for name, layer in layers.items()
        if (
            reason := _missing(hooked, layer)
            or _try_to_force(hooked, name, layer, images, before, routings[name])
        )
    }


def _missing(hooked: HookedModule, layer: HookedLayer) -> str:
    """Return what a router lacks for its choice to be exchanged; nothing if it can be."""
    if layer.choice or hands_on(hooked, layer):
        return ""
    return (
        "cannot be made to repeat a choice: no top-k was seen that chooses from its output or inside of it, and read "
        "does not say where its logits, and the indices and weights of the chosen experts, are"
    )


def _try_to_force(
    hooked: HookedModule,
    name: str,
    layer: HookedLayer,
    images: Tensor,
    before: list[Tensor],
    routing: LayerRouting,
) -> str:
    """Return why one layer cannot be forced; nothing if it can."""
    # Each expert's neighbor: the sizes of sets stay, and all experts change.
    neighbor = (routing.selected + 1) % routing.num_experts
    shifted = replace(routing, selected=neighbor.where(routing.selected >= 0, -1))

    def output_of(candidate: LayerRouting) -> list[Tensor]:
        with replaying(hooked, {name: layer}, RoutingTrace({name: candidate}), gates="recomputed"):
            return outputs(hooked, images)

    try:
        # The same choice again is the control: it shows what forcing alone changes.
        again, changed = output_of(routing), output_of(shifted)
    except UserError as error:
        return f"cannot be made to repeat a choice ({str(error).rstrip('.')})"
    if _differ(hooked, before, again):
        return "does not give the same output where it repeats its own choices"
    # Known already from the trial of the experts' work.
    if layer.obeys is False:
        return "is made to choose experts that do not process the tokens then"
    # What a layer does may reach the output nowhere: then its experts alone show whether it can be forced.
    is_untold = layer.obeys is None and routing.top_k < routing.num_experts
    if is_untold and all(torch.equal(*pair) for pair in zip(again, changed, strict=True)):
        return "gives the same output whatever experts it is made to choose"
    return ""


def _differ(hooked: HookedModule, first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether outputs differ by more than rounding."""
    share = max(_ROUNDING, 4 * hooked.precision)
    return any(
        float((value - repeated).abs().max()) > share * float(value.abs().max())
        for value, repeated in zip(first, second, strict=True)
    )


def outputs(hooked: HookedModule, images: Tensor) -> list[Tensor]:
    """Return the floating tensors in the module's output for images."""
    output, _ = hooked.forward(images, [])
    return [value.float() for value in tensors_of(output) if value.is_floating_point()]


def replayed_scores(
    hooked: HookedModule,
    layers: Mapping[str, HookedLayer],
    images: Tensor,
    routing: RoutingTrace,
    *,
    gates: str,
) -> Tensor:
    """Return the class scores ``(B, classes)`` of images while layers repeat a routing of as many.

    Raises:
        UserError: the model gives none, or the routing cannot be repeated.
    """
    with replaying(hooked, layers, routing, gates=gates):
        output, _ = hooked.forward(images, [])
    return hooked.scores(output, len(images))
