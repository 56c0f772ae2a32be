"""Accuracy and loss of a model in training on a split."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from moeprobe.batches import Recipe, batches
from moeprobe.data.base import ImageDataset


def evaluate(
    model: nn.Module,
    dataset: ImageDataset,
    recipe: Recipe,
    *,
    normalise: nn.Module,
    batch_size: int,
    workers: int,
    device: torch.device,
    indices: Sequence[int] | None = None,
) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy over the clean images; the model is left in its mode."""
    was_training = model.training
    model.eval()
    correct, loss, count = 0, 0.0, 0
    chosen = range(len(dataset)) if indices is None else indices
    with torch.inference_mode():
        for batch in batches(dataset, chosen, recipe, batch_size=batch_size, workers=workers):
            labels = batch.labels.to(device)
            logits: Tensor = model(normalise(batch.views[0].to(device))).float()
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            count += len(labels)
    model.train(was_training)
    return correct / count, loss / count
