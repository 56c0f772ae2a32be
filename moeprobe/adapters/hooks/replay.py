"""Let routers of a foreign module repeat choices that were made elsewhere.

A router whose output holds the numbers of the chosen experts and their weights (``read`` says where) has both exchanged
on the way out; what is around it does the rest. Whether that rules the output is tried on a few images: its own choices
must give what they gave, and others something else. Other routers cannot be forced.

Axes: B images, T tokens, N = B·T tokens in the order of the module, K choices.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.hooks.layer import Layer
from moeprobe.adapters.hooks.module import HookedModule, check_fired, naming
from moeprobe.adapters.hooks.reading import by_image, put, read
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.routing.repeated import check_sizes, repeat

# What repeating its own choices may change by rounding, as a share of the largest class score, in float32.
_ROUNDING = 1e-3


@contextmanager
def replaying(
    hooked: HookedModule, layers: Mapping[str, Layer], routing: RoutingTrace, *, gates: str
) -> Iterator[None]:
    """Let layers repeat a routing, token by token; a token without a choice in it chooses as ever.

    ``gates``: "recomputed" weighs the chosen experts as the router weighs them for its present input, "replayed" as
    the routing says.

    Raises:
        UserError: a router did not run once, the routing is of another model, or weights follow no known rule.
    """
    fired: list[str] = []

    def hook(layer: Layer, wanted: LayerRouting) -> Any:
        def exchange(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            fired.append(layer.module)
            with naming(layer.module):
                return _exchanged(hooked, layer, wanted, (module, arguments, output), gates=gates)

        return exchange

    with ExitStack() as stack:
        for name, wanted in routing.layers.items():
            module = hooked.net.get_submodule(layers[name].module)
            stack.callback(module.register_forward_hook(hook(layers[name], wanted)).remove)
        yield
    check_fired(fired, [layers[name].module for name in routing.layers])


def _exchanged(
    hooked: HookedModule,
    layer: Layer,
    wanted: LayerRouting,
    call: tuple[nn.Module, tuple[Any, ...], Any],
    *,
    gates: str,
) -> Any:
    """Return the output of one call of a router with other numbers and weights in it."""
    how, output, num_images = hooked.settings.read, call[2], len(wanted.valid)
    assert isinstance(how, Mapping)
    values = read(*call, how=how)

    def ordered(given: Tensor) -> Tensor:
        return by_image(given, num_images=num_images, sequence_first=layer.sequence_first).flatten(0, 1)

    own = layer.routing(values, num_images=num_images, token_local=True)
    check_sizes(layer.module, wanted, num_experts=own.num_experts, top_k=own.top_k)
    found = repeat(
        own.gates.flatten(0, 1),
        ordered(values["indices"]),
        ordered(values["weights"]),
        wanted,
        layer.module,
        replayed=gates == "replayed",
    )
    # Where each token stands in the module's own order.
    places = torch.arange(values["indices"][..., 0].numel(), device=own.gates.device)
    place = ordered(places.reshape(*values["indices"].shape[:-1], 1))[:, 0]
    for key, new in zip(("indices", "weights"), found, strict=True):
        whole = torch.empty_like(new)
        whole[place] = new
        output = put(output, how[key], whole.to(values[key].dtype).reshape(values[key].shape))
    return output


def unforced(hooked: HookedModule, layers: Mapping[str, Layer], images: Tensor) -> dict[str, str]:
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
        own = hooked.run(images, layers)
    except UserError:
        return dict.fromkeys(layers, "cannot be seen to repeat a choice, since there are no class scores")
    return {
        name: reason
        for name, layer in layers.items()
        if (reason := _tried(hooked, name, layer, images, own.scores, own.layers[name]))
    }


def _tried(
    hooked: HookedModule, name: str, layer: Layer, images: Tensor, scores: Tensor | None, own: LayerRouting
) -> str:
    """Return why one layer cannot be forced; nothing if it can."""
    assert scores is not None
    other = replace(own, selected=((own.selected + 1) % own.num_experts).where(own.selected >= 0, -1))
    try:
        again, changed = (
            replayed_scores(hooked, {name: layer}, images, RoutingTrace({name: one}), gates="recomputed")
            for one in (own, other)
        )
    except UserError as error:
        return f"cannot be made to repeat a choice ({str(error).rstrip('.')})"
    rounding = max(_ROUNDING, 4 * hooked.precision) * float(scores.abs().max())
    if float((again - scores).abs().max()) > rounding:
        return "does not give the same class scores where it repeats its own choices"
    if own.top_k < own.num_experts and torch.equal(again, changed):
        return "gives the same class scores whatever experts its output names"
    return ""


def replayed_scores(
    hooked: HookedModule, layers: Mapping[str, Layer], images: Tensor, routing: RoutingTrace, *, gates: str
) -> Tensor:
    """Return the class scores ``(B, classes)`` of images while layers repeat a routing of as many."""
    with replaying(hooked, layers, routing, gates=gates):
        output, _ = hooked.forward(images, [])
    return hooked.scores(output, len(images))
