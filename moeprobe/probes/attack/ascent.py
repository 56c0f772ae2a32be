"""Images that are perturbed up to the bound epsilon, in the ℓ∞ or the ℓ2 norm: up a gradient, or at random.

Epsilons are in units of the range [0, 1] of a pixel. The ℓ2 norm is taken over all 3 H W changes of an image.
"""

import numpy as np
import torch
from torch import Tensor

from moeprobe.probes.attack import L2
from moeprobe.probes.attack.objectives import Gradient, RaisedObjective
from moeprobe.runtime.seeds import generator


def ascend(
    gradient: Gradient,
    images: Tensor,
    *,
    epsilon: float,
    steps: int,
    norm: str = "linf",
    start: Tensor | None = None,
) -> Tensor:
    """Return images after projected gradient ascent (Madry et al. 2018).

    Args:
        gradient: of the objective that is raised.
        images: ``(B, 3, H, W)`` in [0, 1].
        epsilon: the largest norm of the change.
        steps: of 2.5 epsilon / steps, along the signs of the gradient, or with ℓ2 along its unit vector.
        norm: "linf" or "l2".
        start: ``(B, 3, H, W)`` where it begins; None = at the images, so that the same call gives the same images.
    """
    adversarial = images if start is None else start
    for _ in range(steps):
        slope = gradient(adversarial)
        direction = _scale_to_norm(slope, 1.0) if norm == L2 else slope.sign()
        adversarial = _near(adversarial + 2.5 * epsilon / steps * direction, images, epsilon, norm)
    return adversarial


def worst_of(
    objective: RaisedObjective,
    images: Tensor,
    image_ids: list[str],
    *,
    epsilon: float,
    steps: int,
    norm: str,
    restarts: int,
    seed: int,
) -> Tensor:
    """Return of each image the worst of several ascents: one from the image, and ``restarts`` from random points."""
    worst = ascend(objective.gradient, images, epsilon=epsilon, steps=steps, norm=norm)
    if not restarts:
        return worst
    highest = objective.values(worst)
    for restart in range(1, restarts + 1):
        start = random_start(images, image_ids, epsilon=epsilon, seed=seed, norm=norm, restart=restart)
        candidate = ascend(objective.gradient, images, epsilon=epsilon, steps=steps, norm=norm, start=start)
        values = objective.values(candidate)
        is_worse = values > highest
        worst = candidate.where(is_worse[:, None, None, None], worst)
        highest = values.where(is_worse, highest)
    return worst


def at_random(
    images: Tensor, image_ids: list[str], *, epsilon: float, seed: int, norm: str = "linf"
) -> Tensor:
    """Return images ``(B, 3, H, W)`` whose change has the norm epsilon, in a direction that (seed, image) says.

    With ℓ∞ each value moves by epsilon, up or down. With ℓ2 the direction is even on the sphere; a value that would
    leave [0, 1] moves the other way, so that the norm stays.
    """
    shape = images.shape[1:]
    if norm != L2:
        signs = [generator(seed, "attack", name).integers(0, 2, shape, dtype=np.int8) for name in image_ids]
        return _near(images + epsilon * (_stack_images(signs, images) * 2 - 1), images, epsilon, norm)
    normals = [generator(seed, "attack l2", name).standard_normal(shape) for name in image_ids]
    change = _scale_to_norm(_stack_images(normals, images), epsilon)
    perturbed = images + change
    return _near(
        torch.where((perturbed < 0) | (perturbed > 1), images - change, perturbed), images, epsilon, norm
    )


def random_start(
    images: Tensor, image_ids: list[str], *, epsilon: float, seed: int, norm: str, restart: int
) -> Tensor:
    """Return points ``(B, 3, H, W)`` drawn evenly among all within epsilon; they belong to (seed, image, restart)."""
    shape = images.shape[1:]
    generators = [generator(seed, f"attack start {norm}", name, restart) for name in image_ids]
    if norm != L2:
        changes = [stream.uniform(-epsilon, epsilon, shape) for stream in generators]
        return _near(images + _stack_images(changes, images), images, epsilon, norm)
    directions = _stack_images([stream.standard_normal(shape) for stream in generators], images)
    radii = _stack_images([stream.random((1, 1, 1)) ** (1 / np.prod(shape)) for stream in generators], images)
    return _near(images + epsilon * radii * _scale_to_norm(directions, 1.0), images, epsilon, norm)


def _stack_images(arrays: list[np.ndarray], images: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(arrays)).to(images)


def _scale_to_norm(change: Tensor, norm: float) -> Tensor:
    """Return changes ``(B, 3, H, W)`` with this ℓ2 norm; one that is 0 stays."""
    # The largest value first: squares of the gradients of a confident answer would be rounded to 0.
    largest = change.abs().amax((1, 2, 3), keepdim=True)
    change = change / largest.where(largest > 0, 1)
    length = change.flatten(1).norm(dim=1)[:, None, None, None]
    return norm * change / length.where(length > 0, 1)


def _near(adversarial: Tensor, images: Tensor, epsilon: float, norm: str) -> Tensor:
    """Return images that are images, and no further than epsilon from their own."""
    if norm != L2:
        return torch.clamp(adversarial, images - epsilon, images + epsilon).clamp(0, 1)
    change = adversarial - images
    length = change.flatten(1).norm(dim=1)[:, None, None, None]
    # Values are cut off at 0 and 1 towards those of the image, which makes no change longer.
    return (images + change * (epsilon / length.clamp_min(epsilon))).clamp(0, 1)
