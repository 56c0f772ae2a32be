"""The smallest run that has everything: a few noise images, a small transformer, a dozen steps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from moeprobe import api
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.views.base import PairView
from moeprobe.models import config
from moeprobe.models.config import TrainConfig
from moeprobe.models.training.loop import Trainer

CPU = torch.device("cpu")
STEPS = 12


class Noise(ImageDataset):
    """Images of noise, 20x16 pixels, labeled in turn; the brightness tells the class."""

    def __init__(self, *, split: str = "train", location: str | None = None, num: int = 44) -> None:
        self.image_ids = [f"{split}/{index}" for index in range(num)]
        self.class_names = ("dark", "gray", "light")

    def example(self, index: int) -> Example:
        rng = np.random.default_rng(index)
        pixels = rng.integers(0, 100, (16, 20, 3)) + 70 * (index % 3)
        return Example(Image.fromarray(pixels.astype(np.uint8)), self.image_ids[index], label=index % 3)


def tiny_config(**changes: Any) -> TrainConfig:
    """Five steps an epoch, an evaluation every four, dropout, noise, clipping, capacity: everything is on."""
    content: dict[str, Any] = {
        "name": "tiny",
        "data": {"name": "noise"},
        "model": {
            "image_size": 16,
            "num_experts": 4,
            "group_images": 4,
            "expert_dropout": 0.1,
            "eval_capacity_factor": 1.5,
        },
        "view": {"name": "random_crop", "flip": True},
        "objective": {"name": "prc", "diagonal_weight": 0.1},
        "optimizer": {"name": "adamw", "learning_rate": 1e-2, "weight_decay": 0.05, "clip_norm": 1.0},
        "schedule": {"name": "cosine", "warmup_steps": 3},
        "batch_size": 8,
        "steps": STEPS,
        "evaluate_every": 4,
        "eval_batch_size": 6,
    }
    for key, value in changes.items():
        section, _, rest = key.partition("__")
        if rest:
            content[section] = dict(content.get(section, {})) | {rest: value}
        else:
            content[section] = value
    return config.parse(content)


def trainer(folder: Path, *, num: int = 44, num_val: int = 11, ranks: Any = None, **changes: Any) -> Trainer:
    settings = tiny_config(**changes)
    view = api.open_view(settings.view.name, **settings.view.parameters)
    assert isinstance(view, PairView)
    return Trainer(
        settings,
        train_data=Noise(num=num),
        val_data=Noise(split="val", num=num_val),
        view=view,
        folder=folder,
        device=CPU,
        ranks=ranks,
    )


def finish(folder: Path, **changes: Any) -> None:
    """Run, or go on where there is something to go on with, to the end."""
    one = trainer(folder, **changes)
    if (folder / "state.safetensors").exists():
        one.resume()
    one.run()


RESULTS = ("last.safetensors", "last.json", "best.safetensors", "best.json", "metrics.csv", "config.yaml")


def results(folder: Path) -> dict[str, bytes]:
    """The bytes of what a finished run leaves."""
    assert (folder / "finished.json").exists() and not (folder / "state.safetensors").exists()
    assert not list(folder.glob(".*.tmp"))
    return {name: (folder / name).read_bytes() for name in RESULTS}
