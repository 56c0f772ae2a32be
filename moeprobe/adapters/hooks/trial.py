"""Try a module out on a few images: in which order its routers run, what they give, whether images meet.

Axes: B images.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from moeprobe.adapters.hooks.detection import DetectedRouter, HookedChoice, choosing, detect, match_modules
from moeprobe.adapters.hooks.layer import HookedLayer, layer_names, read_layer
from moeprobe.adapters.hooks.module import HookedModule, Pass, check_fired, naming
from moeprobe.errors import UserError
from moeprobe.runtime.seeds import generator

# What batches may change by rounding alone, as a share of the largest value.
_ROUNDING = 1e-3


def images_to_try(size: int) -> Tensor:
    """Return a black image, a ramp from black to white, and noise: ``(3, 3, size, size)`` in [0, 1]."""
    noise = generator(0, "try a module out").random((3, size, size), dtype="float32")
    ramp = torch.linspace(0, 1, size).expand(3, size, size)
    return torch.stack([torch.zeros_like(ramp), ramp, torch.from_numpy(noise)])


def learn(hooked: HookedModule, images: Tensor) -> dict[str, HookedLayer]:
    """Return the layers in forward order, by what tables call them.

    Raises:
        UserError: there are no routers, they do not run exactly once, or give something else than was settings.
    """
    settings = hooked.settings
    routers = (
        detect(hooked.net, lambda: hooked.first_forward(images))
        if settings.routers is None
        else [DetectedRouter(name) for name in match_modules(hooked.net, settings.routers)]
    )
    detected = {item.name: item for item in routers}
    with choosing(hooked.net) if settings.routers is None else nullcontext() as choices_of:
        _, fired = hooked.first_forward(images, list(detected))
    check_fired([name for name, _ in fired], list(detected))
    layers = {}
    for name, read in fired:
        with naming(name):
            layers[name] = read_layer(
                name,
                type(hooked.net.get_submodule(name)).__name__,
                read,
                num_images=len(images),
                activation=settings.activation or detected[name].activation or "softmax",
                top_k=settings.top_k or detected[name].top_k,
                settings=settings,
            )
            if choices_of is not None:
                _check_choice(layers[name], read, choices_of)
    return {short: layers[name] for short, name in layer_names(list(layers)).items()}


def _check_choice(
    layer: HookedLayer, read: Mapping[str, Tensor], choices_of: Callable[[str, int], list[HookedChoice]]
) -> None:
    """Raise ``UserError`` where the model chose other experts than those with the highest gates."""
    if layer.top_k is None:
        return
    for choice in choices_of(layer.module, layer.top_k):
        mismatches = layer.count_mismatches(read, choice.experts, precision=choice.precision)
        if mismatches:
            raise UserError(
                f"the model's choice is made of more than its logits (a bias, groups, other images): of "
                f"{read['logits'].flatten(0, -2).shape[0]} tokens {mismatches} have other experts than the highest "
                f"{layer.top_k}. Take a module that returns the choice too, by routers, and say where both are, e.g. "
                "read: {logits: 0, indices: 1}."
            )


def batch_dependence(hooked: HookedModule, layers: Mapping[str, HookedLayer], images: Tensor) -> str:
    """Return why images cannot be run in any batch; nothing if they can.

    Raises:
        UserError: an image's tokens turn up in another image: their order is not as set.
    """
    batch_pass, again = (hooked.run(images, layers, logits=False) for _ in range(2))
    singly = [hooked.run(image, layers, logits=False) for image in images.split(1)]
    token_local = hooked.settings.token_local
    reason = ""
    if not _same_gates(batch_pass, [again]):
        reason = "random at evaluation, so whether images depend on their batch-mates cannot be tried"
    elif not _same_gates(batch_pass, singly):
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
    flipped_layer = dataclasses.replace(layer, sequence_first=not layer.sequence_first)
    _, fired = hooked.forward(images, [layer.module])
    try:
        turned = flipped_layer.routing(fired[0][1], num_images=len(images), token_local=True)
    except UserError:
        return
    if _same_gates(Pass(None, {name: turned}), singly):
        raise UserError(
            f"The router {layer.module} gives its tokens in another order: say "
            f"sequence_first: {str(flipped_layer.sequence_first).lower()}."
        )


def _same_gates(batch_pass: Pass, parts: Sequence[Pass]) -> bool:
    """Whether images have the same gates together as in parts, up to rounding."""
    for name, layer in batch_pass.layers.items():
        gates = torch.cat([part.layers[name].gates for part in parts])
        if (layer.gates - gates).abs().max() > _ROUNDING * layer.gates.abs().max():
            return False
    return True
