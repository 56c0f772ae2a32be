"""What a few images show of a foreign model: its routers, what chooses for them, and what experts do with the choice.

Axes: B images, T tokens, E experts, K choices.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from moeprobe.adapters.hooks.detection import DetectedRouter, choices_of, detect, detect_router, match_modules
from moeprobe.adapters.hooks.layer import HookedLayer, layer_names, read_layer
from moeprobe.adapters.hooks.module import HookedModule, Pass, check_fired, naming
from moeprobe.adapters.hooks.replay import forces, hands_on, replaying
from moeprobe.adapters.hooks.use import (
    BlockCall,
    ExpertBlock,
    changeable,
    count_experts,
    is_mixed,
    mixes_tokens,
    used_experts,
)
from moeprobe.adapters.hooks.watch import SeenChoice, Watch, watching
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.seeds import generator

# How the sentence begins that says so.
RANDOM = "random at evaluation"
# What batches may change by rounding alone, as a share of the largest value.
_ROUNDING = 1e-3


def images_to_try(size: int) -> Tensor:
    """Return a black image, a ramp from black to white, and noise: ``(3, 3, size, size)`` in [0, 1]."""
    # The noise belongs to a fixed seed: the same model is always read in the same way.
    noise = generator(0, "try a module out").random((3, size, size), dtype="float32")
    ramp = torch.linspace(0, 1, size).expand(3, size, size)
    return torch.stack([torch.zeros_like(ramp), ramp, torch.from_numpy(noise)])


def learn(hooked: HookedModule, images: Tensor) -> dict[str, HookedLayer]:
    """Return the layers in forward order, by what tables call them.

    Raises:
        UserError: there are no routers, they do not run exactly once, give something else than was set, or experts
            work for other tokens than the router says.
    """
    settings = hooked.settings
    routers = (
        detect(hooked.net, lambda: hooked.forward(images, []))
        if settings.routers is None
        else [DetectedRouter(name) for name in match_modules(hooked.net, settings.routers)]
    )
    names = [item.name for item in routers]
    with watching(hooked.net, Watch(), names) as watch:
        _, fired = hooked.forward(images, names)
    # A router that ran twice, or never, has no single decision per token.
    check_fired([name for name, _ in fired], names)
    layers = {}
    for name, read in fired:
        with naming(name):
            layers[name] = _learn_layer(hooked, watch, name, read, len(images))
    short = {short: layers[name] for short, name in layer_names(list(layers)).items()}
    return _with_use(hooked, short, images)


def _learn_layer(
    hooked: HookedModule, watch: Watch, name: str, read: Mapping[str, Tensor], num_images: int
) -> HookedLayer:
    """Return how a router is read, and which call chooses for it."""
    settings = hooked.settings
    observation = detect_router(watch, name)
    by_itself = _indices_inside(watch, name, read)
    num_experts = settings.num_experts or (by_itself.ranked.shape[-1] if by_itself else None)
    layer = read_layer(
        name,
        type(hooked.net.get_submodule(name)).__name__,
        read,
        num_images=num_images,
        num_experts=num_experts or count_experts(hooked.net, name),
        activation=settings.activation or observation.activation or "softmax",
        top_k=settings.top_k or (None if "indices" in read else observation.top_k),
        settings=settings,
    )
    if "indices" in read:
        return dataclasses.replace(layer, choice=by_itself.locations if by_itself else ())
    assert layer.top_k is not None
    # A function may compute logits that are no module's output: the router then chooses by itself.
    choices = [
        choice
        for choice in choices_of(watch, name, layer.top_k, inside=callable(settings.read))
        if _has_tokens(layer, choice, num_images)
    ]
    if not choices:
        return layer
    # Calls that agree may be copies (a count of loads, say): any of them will do.
    choice = choices[0]
    if not all(_same_experts(choice, alternative, layer.top_k) for alternative in choices[1:]):
        raise UserError(
            f"{len(choices)} calls choose {layer.top_k} experts each from its output, and not the same ones. Take a "
            "module that returns the choice, by routers, and say where it is, e.g. read: {logits: 0, indices: 1}."
        )
    by_gates = layer.count_mismatches(read, choice) == 0
    return dataclasses.replace(layer, choice=choice.locations, by_gates=by_gates)


def _indices_inside(watch: Watch, name: str, read: Mapping[str, Tensor]) -> SeenChoice | None:
    """Return the top-k inside a router that gives the expert numbers which it returns; None where there is none."""
    indices = read.get("indices")
    if indices is None or indices.ndim < 2 or indices.is_floating_point():
        return None
    top_k = indices.shape[-1]
    expected = indices.flatten(0, -2).long().sort(-1).values
    for choice in choices_of(watch, name, top_k, inside=True):
        experts = choice.experts[..., :top_k].flatten(0, -2)
        if experts.shape == expected.shape and torch.equal(experts.sort(-1).values, expected):
            return choice
    return None


def _has_tokens(layer: HookedLayer, choice: SeenChoice, num_images: int) -> bool:
    """Whether a choice is one for each token of a layer, among all its experts."""
    if choice.ranked.shape[-1] != layer.num_experts:
        return False
    try:
        return layer.by_image(choice.experts, num_images).shape[1] == layer.num_tokens
    except UserError:
        return False


def _same_experts(first: SeenChoice, second: SeenChoice, top_k: int) -> bool:
    sets = [choice.experts[..., :top_k].flatten(0, -2).sort(-1).values for choice in (first, second)]
    return torch.equal(*sets)


# What the experts do with the choice.


def _with_use(
    hooked: HookedModule, layers: Mapping[str, HookedLayer], images: Tensor
) -> dict[str, HookedLayer]:
    """Return the layers after a trial of their experts' work, which ``use`` describes.

    Raises:
        UserError: experts work for other tokens than the router says.
    """
    blocks = {name: block for name, layer in layers.items() if (block := hooked.block_of(layer))}
    trial, calls = hooked.run_listening(images, layers, blocks)
    with_use = {}
    for name, layer in layers.items():
        with naming(layer.module):
            routing, work = trial.layers[name], None
            if name in blocks and len(calls[name]) == 1:
                call = calls[name][0]
                with suppress(UserError):  # a block that cannot be run by itself
                    work = used_experts(hooked.net, blocks[name], call, layer, len(images))
            # Where no expert changes anything, or the block mixes its tokens, their work cannot be told apart.
            is_seen = work is not None and bool(work[..., changeable(blocks[name], work.device)].any())
            if (
                work is not None
                and is_seen
                and layer.num_tokens > 1
                and is_mixed(work, routing.selected_mask)
            ):
                is_seen = not mixes_tokens(hooked.net, blocks[name], call, layer, len(images))
            if work is not None and is_seen:
                with_use[name] = _compare_work(hooked, layer, blocks[name], call, work, routing)
            else:
                with_use[name] = _tried_by_exchange(hooked, layer, routing, images)
    return with_use


def _compare_work(
    hooked: HookedModule,
    layer: HookedLayer,
    block: ExpertBlock,
    call: BlockCall,
    work: Tensor,
    routing: LayerRouting,
) -> HookedLayer:
    """Return a layer whose experts' work ``(B, T, E)`` was compared with the choice on the trial images."""
    choice = routing.selected_mask
    is_changeable = changeable(block, work.device)
    surplus = (work & ~choice & is_changeable).any(-1)
    missing = choice & ~work & is_changeable
    tokens = surplus.numel()
    if surplus.any():
        # The usual sign of a soft mixture; it has a message of its own.
        if work[..., is_changeable].all():
            raise UserError(
                f"every token gets a share of every expert of {block.name or 'the model'}, so there is no choice."
            )
        source = "its indices say" if "indices" in layer.reads else f"its {layer.top_k} highest gates say"
        raise UserError(
            f"experts of {block.name or 'the model'} process other tokens than {source}, {int(surplus.sum())} of "
            f"{tokens} as tried by changing each expert. Take a module that returns the choice, and say where it is, "
            "e.g. read: {logits: 0, indices: 1}."
        )
    if not missing.any():
        return _with_every_expert(hooked, layer, block, call, routing)
    is_used = work.gather(-1, routing.selected.long().clamp_min(0)) & (routing.selected >= 0)
    depth = int(is_used.sum(-1).amax())
    is_leading = bool(is_used[..., :depth].all()) and 0 < depth < routing.top_k
    # A model that computes K + n experts and uses the first K: K is what it uses.
    if is_leading and layer.top_k is not None and hooked.settings.top_k is None:
        return dataclasses.replace(
            layer,
            top_k=depth,
            drops=True,
            use=f"process the first {depth} of the {layer.top_k} that each token chooses, and no others; every pass is "
            "checked for that",
        )
    share = int(missing.any(-1).sum())
    return dataclasses.replace(
        layer,
        drops=True,
        use=f"leave choices out, for {share} of {tokens} tokens tried; what they process is read on every pass",
    )


def _with_every_expert(
    hooked: HookedModule, layer: HookedLayer, block: ExpertBlock, call: BlockCall, routing: LayerRouting
) -> HookedLayer:
    """Return a layer whose experts process the tokens tried, after all experts were forced on some of them.

    An expert that no image chose may be masked, and its tokens dropped.
    """
    text = "process the tokens that chose them"
    is_changeable, is_tried = (
        changeable(block, routing.gates.device),
        routing.selected_mask.flatten(0, 1).any(0),
    )
    obeys = None
    for selected in _forced_sets(routing) if layer.choice or hands_on(hooked, layer) else ():
        forced = dataclasses.replace(routing, selected=selected.where(routing.selected >= 0, -1))
        trace = RoutingTrace({layer.module: forced})
        work = None
        with suppress(UserError):  # why it cannot be forced is said where a routing is to be replayed
            work = used_experts(
                hooked.net,
                block,
                call,
                layer,
                len(routing.valid),
                during=partial(replaying, hooked, {layer.module: layer}, trace, gates="recomputed"),
            )
        if work is None:
            break
        # Other tokens are processed than those that the layer was forced on: the choice does not rule the experts.
        if (work & ~forced.selected_mask & is_changeable).any():
            obeys = False
            break
        lost = (forced.selected_mask & ~work & is_changeable).flatten(0, 1).any(0)
        if lost.any():
            listing = ", ".join(map(str, lost.nonzero().flatten().tolist()))
            return dataclasses.replace(
                layer,
                drops=True,
                use=f"leave out tokens that are forced on expert {listing}; what they process is read on every pass",
            )
        obeys = True
        is_tried |= forced.selected_mask.flatten(0, 1).any(0)
    unchecked = (~is_tried).nonzero().flatten().tolist()
    if unchecked:
        text += f"; not checked, as no token chose them: {', '.join(map(str, unchecked))}"
    return dataclasses.replace(layer, use=text, obeys=obeys)


def _forced_sets(routing: LayerRouting) -> list[Tensor]:
    """Return choices ``(B, T, K)`` that spread tokens over all experts, and choices that crowd the first K."""
    shape = (*routing.valid.shape, routing.top_k)
    numbers = torch.arange(math.prod(shape), device=routing.gates.device).reshape(shape)
    # Crowding finds a capacity: with even loads no token would be dropped.
    crowded = torch.arange(routing.top_k, device=routing.gates.device).expand(shape)
    return [(numbers % routing.num_experts).to(torch.int16), crowded.to(torch.int16).contiguous()]


def _tried_by_exchange(
    hooked: HookedModule, layer: HookedLayer, routing: LayerRouting, images: Tensor
) -> HookedLayer:
    """Return a layer of which each choice was exchanged for another, since its experts cannot be changed one by one.

    Args:
        hooked: the model.
        layer: the layer.
        routing: its choice for the images.
        images: to be run.

    Raises:
        UserError: some of the choices are never used.
    """
    if not layer.choice or layer.top_k is None or layer.top_k >= layer.num_experts:
        return dataclasses.replace(
            layer, use="not checked: no experts were found that can be changed one by one"
        )
    before = hooked.outputs_with(images, forces(layer, routing))
    if not before:
        return dataclasses.replace(layer, use="not checked: no tensors were found in the model's output")
    # The best expert that was not chosen: the output should change, but stay plausible.
    free = (routing.gates if routing.scores is None else routing.scores).masked_fill(
        routing.selected_mask, -torch.inf
    )
    unused = []
    for number in range(layer.top_k):
        selected = routing.selected.clone()
        # Only one of the K choices changes, so that each is tried by itself.
        selected[..., number] = free.argmax(-1)
        after = hooked.outputs_with(images, forces(layer, dataclasses.replace(routing, selected=selected)))
        if all(torch.equal(first, second) for first, second in zip(before, after, strict=True)):
            unused.append(number)
    if len(unused) == layer.top_k:
        return dataclasses.replace(layer, use="not checked: nothing of the layer reaches the model's output")
    if unused:
        raise UserError(
            f"choice {unused[0] + 1} of {layer.top_k} changes nothing in the model's output, so it is not used; if "
            f"only the first {unused[0] or 1} are, say top_k: {unused[0] or 1}."
        )
    return dataclasses.replace(
        layer, use="change the output with each choice (which tokens they process is unknown)"
    )


# Whether images can be run in any batch.


def batch_dependence(hooked: HookedModule, layers: Mapping[str, HookedLayer], images: Tensor) -> str:
    """Return why images cannot be run in any batch; nothing if they can.

    Raises:
        UserError: an image's tokens turn up in another image: their order is not as set.
    """
    batch_pass, again = (hooked.run(images, layers, logits=False) for _ in range(2))
    singly = [hooked.run(image, layers, logits=False) for image in images.split(1)]
    token_local = hooked.settings.token_local
    reason = ""
    if not _same_routing(batch_pass, [again]):
        reason = (
            f"{RANDOM}: two passes of the same images differ, by random numbers, so whether images depend on their "
            "batch-mates cannot be tried"
        )
    elif not _same_routing(batch_pass, singly):
        _check_order(hooked, layers, images, singly)
        reason = "images depend on their batch-mates, as tried"
    if token_local is None:
        return reason
    return "" if token_local else "images depend on their batch-mates, as set"


def _check_order(
    hooked: HookedModule, layers: Mapping[str, HookedLayer], images: Tensor, singly: Sequence[Pass]
) -> None:
    """Raise ``UserError`` where the tokens make sense in the other order only."""
    name, layer = next(iter(layers.items()))
    flipped = dataclasses.replace(layer, sequence_first=not layer.sequence_first)
    try:
        turned = hooked.run(images, {name: flipped}, logits=False)
    except UserError:
        return
    if _same_routing(turned, singly):
        raise UserError(
            f"The router {layer.module} gives its tokens in another order: say "
            f"sequence_first: {str(flipped.sequence_first).lower()}."
        )


def _same_routing(batch_pass: Pass, parts: Sequence[Pass]) -> bool:
    """Whether images have the same routing together as in parts: gates up to rounding, and experts at work.

    Experts may differ if two of them have the same scores up to rounding.
    """
    for name, layer in batch_pass.layers.items():
        of_parts = [part.layers[name] for part in parts]
        for field in ("gates", "scores"):
            value: Tensor | None = getattr(layer, field)
            if value is None:
                continue
            in_parts = torch.cat([getattr(part, field) for part in of_parts])
            change = (value - in_parts).abs().masked_fill(value == in_parts, 0)  # minus infinity is itself
            largest = value.abs().masked_fill(~value.isfinite(), 0).max()
            if not bool((change <= _ROUNDING * largest).all()):
                return False
        # Without gates of all experts, and where choices are left out, numbers alone tell passes apart.
        if not layer.every_gate or not bool(layer.processed.all()):
            experts = torch.cat([part.processed_mask for part in of_parts])
            if not torch.equal(layer.processed_mask, experts):
                return False
    return True
