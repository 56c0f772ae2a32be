"""Trainings of a few steps by several processes: ``python -m tests.models.training.parallel.sharing OUT CASE…``."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeprobe.models.training.parallel.layouts import gather_tensors
from moeprobe.runtime import distributed
from moeprobe.runtime.catalog import OBJECTIVES, ROUTERS
from tests.models.training.tiny import trainer

# Sixteen images of two views: four groups of four rows for each of two processes with two passes.
COMMON: dict[str, Any] = {
    "batch_size": 16,
    "steps": 3,
    "schedule__warmup_steps": 0,
    "schedule__name": "linear",
    "model__expert_dropout": 0.0,
    "optimizer": {"name": "momentum", "learning_rate": 0.05, "weight_decay": 0.01, "clip_norm": 0.5},
}
# Passes of each process, and whether in double precision: of routers the first alone.
TRIED = ((1, True), (2, True), (1, False))
PLAIN = {"objective": {"name": "balanced", "importance_weight": 0.0, "load_weight": 0.0}}
CASES: dict[str, dict[str, Any]] = {
    f"objective {name}": {"objective": {"name": name}} for name in OBJECTIVES.names()
}
CASES |= {
    "objective prc with noise": {"objective": {"name": "prc", "noisy": True, "offdiagonal_weight": 1.0}},
    "objective balanced, all terms": {
        "objective": {"name": "balanced", "gshard_weight": 0.1, "z_weight": 0.01, "load_weight": 0.1}
    },
    "mixup": {"objective": {"name": "balanced"}, "mixup": 0.5, "views_per_image": 1, "loss": "sigmoid"},
    "mae": {
        "mae": {"mask": 0.75, "width": 24, "depth": 1, "num_heads": 2},
        "objective": {"name": "variation", "image_epsilon": 0.1},
        "model__patch_size": 4,
    },
    "whole experts left out": PLAIN | {"model__whole_expert_dropout": 0.3},
    "one view": {"objective": {"name": "balanced"}, "views_per_image": 1},
}
CASES |= {
    f"router {name}": PLAIN
    | {"model__router": {"name": name}, "model__eval_capacity_factor": None}
    | ({"model__group_images": None} if ROUTERS.get(name).mixes_tokens else {})
    for name in ROUTERS.names()
}


def outcome(folder: Path, *, double: bool, ranks: Any = None, **changes: Any) -> dict[str, np.ndarray]:
    """Losses and gradients of three steps, and the parameters after them, each whole."""
    one = trainer(folder, ranks=ranks, **COMMON | changes)
    if double:
        one.model.double()
        one.normalise.double()
        for group in one.optimizer.param_groups:
            group["fused"] = False
    found = {}
    for number, batch in enumerate(one.batches()):
        if double:
            batch.views[:] = [view.double() for view in batch.views]
        for name, value in one.train_step(batch).items():
            found[f"{name} of step {number}"] = value.double().numpy()
        parameters = one.model.named_parameters()
        gradients = {name: held.grad for name, held in parameters if held.grad is not None}
        for name, gradient in gather_tensors(one.layout, gradients).items():
            found[f"gradient of {name}, step {number}"] = gradient.double().numpy().copy()
    for name, parameter in gather_tensors(one.layout, one.model.state_dict()).items():
        found[name] = parameter.double().numpy()
    if not double:
        found |= judged(one)
    return found


def judged(one: Any) -> dict[str, np.ndarray]:
    """What an evaluation finds."""
    values = one.task.validate(
        one.val_data, one.framing, normalise=one.normalise, device=one.device, layout=one.layout
    )
    return {name: np.array(value) for name, value in values.items()}


def main(out: Path, names: list[str]) -> None:
    """Run cases with one pass and with two passes of each process; the first process writes."""
    with distributed.together() as ranks:
        for name in names:
            for passes, double in TRIED if name.startswith("objective") else TRIED[:1]:
                found = outcome(out, double=double, ranks=ranks, accumulate=passes, **CASES[name])
                if ranks.rank == 0:
                    np.savez(out / f"{name}-{passes}-{double}.npz", **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.ending():
        main(Path(sys.argv[1]), sys.argv[2:])
