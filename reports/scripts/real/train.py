"""Train V-MoE-S/14 with and without PRC, made of the pretrained ViT-S/14, three seeds each.

    python -m reports.scripts.real.train build/real

As many at once as there are cores, with one thread each: so their bytes do not depend on the cores. A finished
training is not repeated, and an interrupted one is resumed.
"""

import sys
from pathlib import Path

from moeprobe import api
from reports.scripts.at_once import each
from reports.scripts.objectives import MODELS

SEEDS = (0, 1, 2)


def data_of(root: Path) -> str:
    """Return the name of the data set in the unpacked package."""
    return f"photographs:{root / 'tuxpaint-stamps-default' / 'usr' / 'share' / 'tuxpaint' / 'stamps'}"


def checkpoint(root: Path, model: str, seed: int) -> Path:
    """Return the folder of a training."""
    return root / "checkpoints" / f"photographs-{model}-seed{seed}"


def train(work: str) -> None:
    """Train one model to its end; ``work`` is the folder of everything, the model and its seed, space between."""
    folder, model, seed = work.split()
    root = Path(folder)
    run = checkpoint(root, model, int(seed))
    overrides = [
        f"name={run.name}",
        f"seed={seed}",
        f"data.name={data_of(root)}",
        f"model.upcycle.file={root / 'vit_s14.safetensors'}",
    ]
    api.train(f"photographs-{model}", overrides=overrides, folder=run)


if __name__ == "__main__":
    each(train, [f"{sys.argv[1]} {kind} {number}" for number in SEEDS for kind in MODELS])
