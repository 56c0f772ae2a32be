"""Means over the clean images of a split, of a model in training."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.views.base import Recipe
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.training.layouts import Layout


def evaluate(
    model: VisionTransformer,
    dataset: ImageDataset,
    recipe: Recipe,
    judge: Callable[[Tensor, Tensor, list[str]], dict[str, Tensor]],
    *,
    normalise: nn.Module,
    loading: Loading,
    device: torch.device,
    layout: Layout,
) -> dict[str, float]:
    """Return the means of what ``judge`` says of images, labels and names; the model is left in its mode.

    Images that share a group (and so a capacity) follow one another in the split; what is left over at its end is a
    smaller group. The size of batches is rounded to whole groups, so it changes nothing but speed. Each process takes
    some of the batches. Where processes run the model in step, those with fewer passes run it on an empty image.
    """
    ranks = layout.ranks
    was_training = model.training
    model.eval()
    group = math.lcm(*(layer.group_images for layer in moe_layers(model).values()))
    batch_size = max(group, loading.batch_size // group * group)
    starts = range(0, len(dataset), batch_size)
    batches_of = [
        starts[len(starts) * one // ranks.size : len(starts) * (one + 1) // ranks.size]
        for one in range(ranks.size)
    ]
    own = batches_of[ranks.rank]
    images_of = range(own[0], min(own[-1] + batch_size, len(dataset))) if own else range(0)
    sums: dict[str, float] = {}
    # What is sent between processes is kept for the next step, which an inference tensor cannot be.
    with torch.no_grad() if layout.in_step else torch.inference_mode(), ranks.watching():
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
        if layout.in_step:
            passes = [
                sum(len(_whole_groups(min(batch_size, len(dataset) - start), group)) for start in one)
                for one in batches_of
            ]
            for _ in range(max(passes) - passes[ranks.rank]):
                judge(*_empty(model, device))
    model.train(was_training)
    found = ranks.exchange(sums)
    # A process without a batch of its own has no names.
    return {name: sum(one.get(name, 0.0) for one in found) / len(dataset) for name in max(found, key=len)}


def _empty(model: VisionTransformer, device: torch.device) -> tuple[Tensor, Tensor, list[str]]:
    """Return an image of zeros, with a label and a name."""
    height, width = model.patch_embed.img_size
    images = torch.zeros((1, 3, height, width), device=device)
    return images, torch.zeros(1, dtype=torch.long, device=device), [""]


def _whole_groups(count: int, group: int) -> list[tuple[int, int]]:
    """Return where the images that fill groups begin and end, and those left over."""
    cut = count - count % group
    return [(first, last) for first, last in pairwise((0, cut, count)) if last > first]
