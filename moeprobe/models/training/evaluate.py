"""Means over the clean images of a split, of a model in training."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.views.base import Recipe
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.distributed import Alone, Ranks


def evaluate(
    model: nn.Module,
    dataset: ImageDataset,
    recipe: Recipe,
    judge: Callable[[Tensor, Tensor, list[str]], dict[str, Tensor]],
    *,
    normalise: nn.Module,
    loading: Loading,
    device: torch.device,
    ranks: Ranks | Alone,
) -> dict[str, float]:
    """Return the means of what ``judge`` says of images, labels and names; the model is left in its mode.

    Images that share a group (and so a capacity) follow one another in the split; what is left over at its end is a
    smaller group. The size of batches is rounded to whole groups, so it changes nothing but speed. Each process takes
    some of the batches.
    """
    was_training = model.training
    model.eval()
    group = math.lcm(*(layer.group_images for layer in moe_layers(model).values()))
    batch_size = max(group, loading.batch_size // group * group)
    starts = range(0, len(dataset), batch_size)
    own = starts[len(starts) * ranks.rank // ranks.size : len(starts) * (ranks.rank + 1) // ranks.size]
    images_of = range(own[0], min(own[-1] + batch_size, len(dataset))) if own else range(0)
    sums: dict[str, float] = {}
    with torch.inference_mode():
        for batch in batches(dataset, images_of, recipe, loading=replace(loading, batch_size=batch_size)):
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
    found = ranks.exchange(sums)
    # A process without a batch of its own has no names.
    return {name: sum(one.get(name, 0.0) for one in found) / len(dataset) for name in max(found, key=len)}


def _whole_groups(count: int, group: int) -> list[tuple[int, int]]:
    """Return where the images that fill groups begin and end, and those left over."""
    cut = count - count % group
    return [(first, last) for first, last in pairwise((0, cut, count)) if last > first]
