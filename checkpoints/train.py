"""Train the checkpoints that are committed under ``checkpoints/reference``: what the reports are made from.

    .venv/bin/python checkpoints/train.py digits shapes

For each training seed: V-MoE and V-MoE with PRC with k = 2, and from each of them k = 1, trained on for a third of the
epochs with its head kept. (The PRC paper fine-tunes both k from one model pretrained with k = 2: there the two have one
budget, here they have not.) A finished checkpoint is not trained again. Kept are the parameters, in float16 (a report
is about what the file holds), their description and the configuration.
"""

import shutil
import sys
from pathlib import Path

import torch

from moeprobe import api
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import load
from moeprobe.runtime.files import write_json

# Relative, since a fine-tuned checkpoint remembers what it started from: run this in the root of the checkout.
FOLDER = Path("checkpoints/reference")
OBJECTIVES = ("baseline", "prc")
SEEDS = (0, 1, 2)
KEPT = ("last.safetensors", "last.json", "config.yaml")


def name(data: str, objective: str, top_k: int, seed: int) -> str:
    """Return what a checkpoint's folder is called."""
    return f"{data}-{objective}-k{top_k}-seed{seed}"


def train(data: str, objective: str, top_k: int, seed: int) -> None:
    """Train one checkpoint and keep it, in float16."""
    folder = FOLDER / name(data, objective, top_k, seed)
    if (folder / KEPT[0]).exists():
        return
    base = f"{data}-{objective}"
    overrides = [f"name={folder.name}", f"seed={seed}", f"group={base}-k{top_k}"]
    if top_k == 1:
        overrides += [
            "model.top_k=1",
            f"epochs={load(base).epochs // 3}",
            f"initialise.checkpoint={FOLDER / name(data, objective, 2, seed)}",
            "initialise.keep_head=true",
        ]
    run = FOLDER / f"{folder.name}.run"
    summary = api.train(base, overrides=overrides, folder=run)
    tensors, description = checkpoint.read_tensors(run / KEPT[0])
    half = {
        key: tensor.half() if tensor.dtype == torch.float32 else tensor for key, tensor in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "last.json", description)
    shutil.copy(run / "config.yaml", folder)
    checkpoint.write_tensors(folder / KEPT[0], half, description)
    shutil.rmtree(run)
    print(f"{folder.name}: validation accuracy {summary['val_accuracy']:.3f}", flush=True)


def main(families: list[str]) -> None:
    """Train what is missing."""
    for data in families:
        for seed in SEEDS:
            for top_k in (2, 1):
                for objective in OBJECTIVES:
                    train(data, objective, top_k, seed)


if __name__ == "__main__":
    main(sys.argv[1:])
