"""What the models, their trainings and the numbers about them are called; without anything to import."""

from pathlib import Path

MODELS = {"baseline": "MoE", "prc": "MoE with PRC"}
SEEDS = (0, 1, 2)
# The form of the dense model that is published, too.
INT8 = "int8"


def checkpoint(root: Path, model: str, seed: int) -> Path:
    """Return the folder of a training."""
    return root / "checkpoints" / f"minilm-{model}-seed{seed}"
