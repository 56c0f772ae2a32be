"""Means over the clean images of a split, of a model in training."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.views.base import Recipe
from moeprobe.models.nn.capture import moe_layers


def evaluate(
    model: nn.Module,
    dataset: ImageDataset,
    recipe: Recipe,
    judge: Callable[[Tensor, Tensor, list[str]], dict[str, Tensor]],
    *,
    normalise: nn.Module,
    batch_size: int,
    workers: int,
    device: torch.device,
) -> dict[str, float]:
    """Return the means of what ``judge`` says of images, labels and names; the model is left in its mode.

    Images that share a group (and so a capacity) follow one another in the split; what is left over at its end is a
    smaller group. ``batch_size`` is rounded to whole groups, so it changes nothing but speed.
    """
    was_training = model.training
    model.eval()
    group = math.lcm(*(layer.group_images for layer in moe_layers(model).values()))
    batch_size = max(group, batch_size // group * group)
    sums: dict[str, float] = {}
    with torch.inference_mode():
        for batch in batches(dataset, range(len(dataset)), recipe, loading=Loading(batch_size, workers)):
            labels = batch.labels.to(device)
            images = normalise(batch.views[0].to(device))
            parts = [
                judge(images[first:last], labels[first:last], batch.image_ids[first:last])
                for first, last in _whole_groups(len(images), group)
            ]
            for name in parts[0]:
                values = torch.cat([part[name] for part in parts])
                sums[name] = sums.get(name, 0.0) + float(values.sum())
    model.train(was_training)
    return {name: value / len(dataset) for name, value in sums.items()}


def _whole_groups(count: int, group: int) -> list[tuple[int, int]]:
    """Return where the images that fill groups begin and end, and those left over."""
    cut = count - count % group
    return [(first, last) for first, last in pairwise((0, cut, count)) if last > first]
