"""Trainings of a few steps by several processes, for tests: ``python -m tests.models.training.sharing OUT``."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeprobe.runtime import distributed
from moeprobe.runtime.catalog import OBJECTIVES, ROUTERS
from tests.models.training.tiny import trainer

# Sixteen images of two views: four groups of four rows for each of two processes with two passes.
COMMON: dict[str, Any] = {
    "batch_size": 16,
    "steps": 5,
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
    """Losses and gradients of five steps, and the parameters after them."""
    settings = COMMON | changes
    one = trainer(folder, ranks=ranks, **settings)
    if double:
        one.model.double()
        one.normalise.double()
        one.optimizer.param_groups[0]["fused"] = one.optimizer.param_groups[1]["fused"] = False
    found = {}
    for number, batch in enumerate(one.batches()):
        if double:
            batch.views[:] = [view.double() for view in batch.views]
        for name, value in one.train_step(batch).items():
            found[f"{name} of step {number}"] = value.double().numpy()
        for name, parameter in one.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}, step {number}"] = parameter.grad.double().numpy().copy()
    return found | {name: one.detach().double().numpy() for name, one in one.model.named_parameters()}


def main(out: Path) -> None:
    """Run every case with one pass and with two passes of each process; the first process writes."""
    with distributed.together() as ranks:
        for name, changes in CASES.items():
            for passes, double in TRIED if name.startswith("objective") else TRIED[:1]:
                found = outcome(out, double=double, ranks=ranks, accumulate=passes, **changes)
                if ranks.rank == 0:
                    np.savez(out / f"{name}-{passes}-{double}.npz", **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.ending():
        main(Path(sys.argv[1]))
