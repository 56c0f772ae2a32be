"""Trainings whose processes hold parts of the model: ``python -m tests.models.training.parallel.laid_out``."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeprobe.runtime import distributed
from tests.models.training.parallel.sharing import CASES as SHARED
from tests.models.training.parallel.sharing import COMMON, PLAIN, outcome

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
