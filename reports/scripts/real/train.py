"""Train V-MoE-S/14 with and without PRC, made of the pretrained ViT-S/14, three seeds each.

    python -m reports.scripts.real.train build/real

A finished training is not repeated, and an interrupted one goes on.
"""

import sys
from pathlib import Path

from moeprobe import api

MODELS = {"baseline": "V-MoE", "prc": "V-MoE with PRC"}
SEEDS = (0, 1, 2)


def data_of(root: Path) -> str:
    """Return the name of the data set in the unpacked package."""
    return f"photographs:{root / 'tuxpaint-stamps-default' / 'usr' / 'share' / 'tuxpaint' / 'stamps'}"


def checkpoint(root: Path, model: str, seed: int) -> Path:
    """Return the folder of a training."""
    return root / "checkpoints" / f"photographs-{model}-seed{seed}"


def train(root: Path, model: str, seed: int) -> None:
    """Train one model to its end."""
    folder = checkpoint(root, model, seed)
    overrides = [
        f"name={folder.name}",
        f"seed={seed}",
        f"data.name={data_of(root)}",
        f"model.upcycle.file={root / 'vit_s14.safetensors'}",
    ]
    api.train(f"photographs-{model}", overrides=overrides, folder=folder)


if __name__ == "__main__":
    for number in SEEDS:
        for kind in MODELS:
            train(Path(sys.argv[1]), kind, number)
