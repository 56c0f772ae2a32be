"""Let routers of a foreign module repeat choices that were made elsewhere.

A router whose output holds the numbers of the chosen experts and their weights (``read`` says where) has both exchanged
on the way out; the surrounding module does the rest. Whether that rules the output is tried on a few images: its own
choices must give what they gave, and others something else. Other routers cannot be forced.

Axes: B images, T tokens, N = B·T tokens in the order of the module, K choices.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.hooks.layer import HookedLayer, by_image, put, read
from moeprobe.adapters.hooks.module import HookedModule, check_fired, naming
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.routing.repeated import check_sizes, repeat

# What repeating its own choices may change by rounding, as a share of the largest class score, in float32.
_ROUNDING = 1e-3


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

    def hook(layer: HookedLayer, layer_routing: LayerRouting) -> Any:
        def exchange(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            fired.append(layer.module)
            with naming(layer.module):
                return _exchanged(hooked, layer, layer_routing, (module, arguments, output), gates=gates)

        return exchange

    with ExitStack() as stack:
        for name, choice in routing.layers.items():
            module = hooked.net.get_submodule(layers[name].module)
            stack.callback(module.register_forward_hook(hook(layers[name], choice)).remove)
        yield
    check_fired(fired, [layers[name].module for name in routing.layers])


def _exchanged(
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

    def ordered(tensor: Tensor) -> Tensor:
        return by_image(tensor, num_images, layer.sequence_first).flatten(0, 1)

    current = layer.routing(values, num_images=num_images, token_local=True)
    check_sizes(layer.module, layer_routing, num_experts=current.num_experts, top_k=current.top_k)
    replacements = repeat(
        current.gates.flatten(0, 1),
        ordered(values["indices"]),
        ordered(values["weights"]),
        layer_routing,
        layer.module,
        replayed=gates == "replayed",
    )
    # Where each token stands in the module's own order.
    row_numbers = torch.arange(values["indices"][..., 0].numel(), device=current.gates.device)
    order = ordered(row_numbers.reshape(*values["indices"].shape[:-1], 1))[:, 0]
    for key, new in zip(("indices", "weights"), replacements, strict=True):
        restored = torch.empty_like(new)
        restored[order] = new
        output = put(output, how[key], restored.to(values[key].dtype).reshape(values[key].shape))
    return output


def unforced(hooked: HookedModule, layers: Mapping[str, HookedLayer], images: Tensor) -> dict[str, str]:
    """Return by layer why its choice cannot be forced, in words that follow the name of its router; none if it can."""
    how = hooked.settings.read
    if not isinstance(how, Mapping) or "weights" not in how:
        reason = (
            "is read by a function, which does not say where in its output a choice could be exchanged"
            if callable(how)
            else "cannot be made to repeat a choice unless read says where in its output the indices and weights of "
            "the chosen experts are"
        )
        return dict.fromkeys(layers, reason)
    try:
        reference = hooked.run(images, layers)
    except UserError:
        return dict.fromkeys(layers, "cannot be seen to repeat a choice, since there are no class scores")
    return {
        name: reason
        for name, layer in layers.items()
        if (reason := _tried(hooked, name, layer, images, reference.scores, reference.layers[name]))
    }


def _tried(
    hooked: HookedModule,
    name: str,
    layer: HookedLayer,
    images: Tensor,
    scores: Tensor | None,
    layer_routing: LayerRouting,
) -> str:
    """Return why one layer cannot be forced; nothing if it can."""
    assert scores is not None
    shifted = replace(
        layer_routing,
        selected=((layer_routing.selected + 1) % layer_routing.num_experts).where(
            layer_routing.selected >= 0, -1
        ),
    )
    try:
        again, changed = (
            replayed_scores(
                hooked, {name: layer}, images, RoutingTrace({name: candidate}), gates="recomputed"
            )
            for candidate in (layer_routing, shifted)
        )
    except UserError as error:
        return f"cannot be made to repeat a choice ({str(error).rstrip('.')})"
    rounding = max(_ROUNDING, 4 * hooked.precision) * float(scores.abs().max())
    if float((again - scores).abs().max()) > rounding:
        return "does not give the same class scores where it repeats its own choices"
    if layer_routing.top_k < layer_routing.num_experts and torch.equal(again, changed):
        return "gives the same class scores whatever experts its output names"
    return ""


def replayed_scores(
    hooked: HookedModule,
    layers: Mapping[str, HookedLayer],
    images: Tensor,
    routing: RoutingTrace,
    *,
    gates: str,
) -> Tensor:
    """Return the class scores ``(B, classes)`` of images while layers repeat a routing of as many."""
    with replaying(hooked, layers, routing, gates=gates):
        output, _ = hooked.forward(images, [])
    return hooked.scores(output, len(images))
