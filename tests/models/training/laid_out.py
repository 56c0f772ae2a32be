"""Trainings whose processes hold parts of the model: ``python -m tests.models.training.laid_out OUT CASE…``."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeprobe.models.training.layouts import gathered
from moeprobe.runtime import distributed
from tests.models.training.sharing import CASES as SHARED
from tests.models.training.sharing import COMMON, PLAIN
from tests.models.training.tiny import trainer

OPTIMIZERS = ("adam", "adamw", "momentum", "nadam", "nadamw", "rmsprop", "sgd")
CASES: dict[str, dict[str, Any]] = {
    name: changes
    for name, changes in SHARED.items()
    if name.startswith("router ") or name in ("objective prc", "whole experts left out", "mae", "mixup")
}
CASES |= {
    f"optimizer {name}": {"optimizer": COMMON["optimizer"] | {"name": name, "learning_rate": 1e-3}}
    for name in OPTIMIZERS
}
CASES |= {
    "bfloat16": {"model__bfloat16_dispatch": True},
    "two passes": {"objective": {"name": "prc"}, "accumulate": 2},
    "no limit": {"model__capacity_factor": "none"},
    "frozen experts": {"freeze": ["*.experts.*"]},
    "frozen but experts": PLAIN | {"freeze": ["*", "!*.experts.*"]},
}


def outcome(folder: Path, *, double: bool, ranks: Any = None, **changes: Any) -> dict[str, np.ndarray]:
    """Losses and gradients of five steps, the parameters after them, and an evaluation."""
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
        gradients = {
            name: parameter.grad
            for name, parameter in one.model.named_parameters()
            if parameter.grad is not None
        }
        for name, gradient in gathered(one.layout, gradients).items():
            found[f"gradient of {name}, step {number}"] = gradient.double().numpy().copy()
    for name, parameter in gathered(one.layout, one.model.state_dict()).items():
        found[name] = parameter.double().numpy()
    if not double:
        judged = one.task.validate(
            one.val_data, one.framing, normalise=one.normalise, device=one.device, layout=one.layout
        )
        found |= {name: np.array(value) for name, value in judged.items()}
    return found


def main(out: Path, names: list[str]) -> None:
    """Train in double and in single precision; the first process writes."""
    with distributed.together() as ranks:
        for name in names:
            parallel, _, case = name.partition(": ")
            layout = {"parallel": parallel} | ({"expert_ranks": 2} if parallel == "experts" else {})
            for double in (True, False):
                found = outcome(out, double=double, ranks=ranks, **CASES[case], **layout)
                if ranks.rank == 0:
                    np.savez(out / f"{name}-{double}.npz", **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.ending():
        main(Path(sys.argv[1]), sys.argv[2:])
