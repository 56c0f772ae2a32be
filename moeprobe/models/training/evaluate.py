"""Accuracy and loss of a model in training on a split."""

import math

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
    *,
    normalise: nn.Module,
    batch_size: int,
    workers: int,
    device: torch.device,
) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy over the clean images; the model is left in its mode.

    Images that share a group (and so a capacity) follow one another in the split; what is left over at its end is a
    smaller group. ``batch_size`` is rounded to whole groups, so it changes nothing but speed.
    """
    was_training = model.training
    model.eval()
    group = math.lcm(*(layer.group_images for layer in moe_layers(model).values()))
    batch_size = max(group, batch_size // group * group)
    correct, loss = 0, 0.0
    with torch.inference_mode():
        for batch in batches(dataset, range(len(dataset)), recipe, loading=Loading(batch_size, workers)):
            labels = batch.labels.to(device)
            images = normalise(batch.views[0].to(device))
            logits = torch.cat([model(part) for part in _whole_groups(images, group)]).float()
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    model.train(was_training)
    return correct / len(dataset), loss / len(dataset)


def _whole_groups(images: Tensor, group: int) -> list[Tensor]:
    """Return the images that fill groups, and those left over."""
    cut = len(images) - len(images) % group
    return [part for part in (images[:cut], images[cut:]) if len(part)]
