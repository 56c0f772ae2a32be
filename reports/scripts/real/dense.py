"""The dense model, the start of its sparse forms, and what either makes of the photographs.

Axes: N photographs, T tokens, D width.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from moeprobe.inputs.images import Framing
from moeprobe.inputs.open import open_images
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.training.start import upcycle_from
from moeprobe.models.training.tasks import Normalise
from reports.scripts.real.train import data_of


@dataclass(frozen=True, eq=False)
class Photographs:
    """All photographs as models see them.

    Attributes:
        pixels: ``(N, 3, S, S)`` in [0, 1].
        labels: ``(N,)``.
        split: ``(N,)`` "train", "val" or "test".
    """

    pixels: torch.Tensor
    labels: NDArray[np.int64]
    split: NDArray[np.str_]

    @classmethod
    def of(cls, root: Path, config: ModelConfig) -> "Photographs":
        """Return the photographs of the package in the folder of everything."""
        dataset = open_images(data_of(root), split="all")
        split_of = {
            name: split
            for split in ("train", "val", "test")
            for name in open_images(data_of(root), split=split).image_ids
        }
        framing = Framing(int(config.image_size or 0))
        images = [dataset.example(number).image for number in range(len(dataset))]
        return cls(
            torch.stack([framing.clean(image).pixels for image in images]),
            dataset.labels(),
            np.array([split_of[name] for name in dataset.image_ids]),
        )


def start_of(root: Path, config: ModelConfig, **changes: object) -> nn.Module:
    """Return the model of a configuration as it is before its training; without ``layers`` the dense one."""
    assert config.upcycle is not None
    upcycle = config.upcycle.model_copy(update={"file": str(root / "vit_s14.safetensors")})
    config = config.model_copy(update={"num_classes": 7, "upcycle": upcycle} | changes)
    model = build_model(config)
    upcycle_from(model, config)
    return model


def tokens_of(model: nn.Module, pixels: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Return the tokens ``(N, T, D)`` after the last norm."""
    normalise = Normalise(config)
    model.eval()
    with torch.inference_mode():
        parts = [model.forward_features(normalise(part)) for part in pixels.split(16)]  # type: ignore[operator]
    return torch.cat(parts)
