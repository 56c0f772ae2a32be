"""Train the checkpoints that are committed under ``checkpoints/reference``: what the reports are made from.

    .venv/bin/python checkpoints/train.py digits shapes
    .venv/bin/python checkpoints/train.py fashion --seeds 0

For each training seed: V-MoE and V-MoE with PRC, with k = 2 and with k = 1.

* On digits and shapes k = 1 is trained on from k = 2 for a third of the epochs with its head kept, so the two have not
  one budget.
* On Fashion-MNIST they have, by the protocol of the PRC paper: from one model pretrained with k = 2 both are fine-tuned
  alike, at a larger resolution and with a new head. The pretrained models are kept, too.

A finished checkpoint is not trained again, and an interrupted training goes on. Kept are the parameters, in float16
(a report is about what the file holds), their description and the configuration.
"""

import argparse
import shutil
from pathlib import Path

import torch

from moeprobe import api
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import load
from moeprobe.runtime.files import write_json

# Relative, since a fine-tuned checkpoint remembers what it started from: run this in the root of the checkout.
RUNS = Path("checkpoints")
FOLDER = RUNS / "reference"
OBJECTIVES = ("baseline", "prc")
SEEDS = (0, 1, 2)
KEPT = ("last.safetensors", "last.json", "config.yaml")
DATA = ("digits", "shapes", "fashion")


def name(data: str, objective: str, top_k: int, seed: int) -> str:
    """Return what a checkpoint's folder is called."""
    return f"{data}-{objective}-k{top_k}-seed{seed}"


def continued(folder: Path, data: str, objective: str, top_k: int, seed: int) -> tuple[str, list[str]]:
    """Return the configuration of a checkpoint and what is changed in it: k = 1 goes on from the kept k = 2."""
    base = f"{data}-{objective}"
    if top_k == 2:
        return base, []
    return base, [
        "model.top_k=1",
        f"epochs={load(base).epochs // 3}",
        f"initialise.checkpoint={folder / name(data, objective, 2, seed)}",
        "initialise.keep_head=true",
    ]


def fine_tuned(folder: Path, data: str, objective: str, top_k: int, seed: int) -> tuple[str, list[str]]:
    """Return the same of a checkpoint that is fine-tuned from a pretrained model, which is trained here first."""
    base = f"{data}-{objective}"
    start = folder / f"{base}-pretrained-seed{seed}"
    run_and_keep(start, base, [f"seed={seed}", f"group={base}-pretrained"])
    return f"{base}-ft", [f"model.top_k={top_k}", f"initialise.checkpoint={start}"]


def train(folder: Path, data: str, objective: str, top_k: int, seed: int) -> None:
    """Train one checkpoint and keep it in a folder."""
    kept = folder / name(data, objective, top_k, seed)
    if is_kept(kept):
        return
    config, changes = (fine_tuned if data == "fashion" else continued)(folder, data, objective, top_k, seed)
    run_and_keep(kept, config, [f"seed={seed}", f"group={data}-{objective}-k{top_k}", *changes])


def is_kept(folder: Path) -> bool:
    """Whether a checkpoint is there."""
    return (folder / KEPT[0]).exists()


def run_and_keep(folder: Path, config: str, changes: list[str]) -> None:
    """Train what a configuration says, unless that is kept already, and keep the last checkpoint."""
    if is_kept(folder):
        return
    run = RUNS / folder.name
    summary = api.train(config, overrides=[f"name={folder.name}", *changes], folder=run, resume=True)
    keep(run, folder)
    shutil.rmtree(run)
    print(f"{folder.name}: validation accuracy {summary['val_accuracy']:.3f}", flush=True)


def keep(run: Path, folder: Path) -> None:
    """Write the last checkpoint of a run, in float16, with its description and configuration."""
    tensors, description = checkpoint.read_tensors(run / KEPT[0])
    half = {
        key: tensor.half() if tensor.dtype == torch.float32 else tensor for key, tensor in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "last.json", description)
    shutil.copy(run / "config.yaml", folder)
    checkpoint.write_tensors(folder / KEPT[0], half, description)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", choices=DATA)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they are kept, under checkpoints/")
    asked = parser.parse_args()
    for data in asked.data:
        for seed in asked.seeds:
            for top_k in (2, 1):
                for objective in OBJECTIVES:
                    train(asked.folder, data, objective, top_k, seed)


if __name__ == "__main__":
    main()
