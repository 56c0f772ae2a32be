"""From an image to what the model is trained and validated on."""

import torch
from PIL import Image
from torch import Tensor, nn

from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import PairView
from moeprobe.models.config import ModelConfig
from moeprobe.runtime.seeds import generator


class Normalise(nn.Module):
    """From [0, 1] to the model's input."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(config.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(config.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``(B, 3, H, W)``."""
        return (images - self.mean) / self.std


def training_views(
    image: Image.Image, image_id: str, *, view: PairView, framing: Framing, seed: int, epoch: int, count: int
) -> list[Sample]:
    """Return the first ``count`` views of an image's random pair in this epoch."""
    rng = generator(seed, "training view", image_id, epoch)
    return list(view.pair(image, framing=framing, rng=rng))[:count]


def clean_view(image: Image.Image, image_id: str, *, framing: Framing) -> list[Sample]:
    """Return the unperturbed view of an image."""
    return [framing.clean(image)]
