"""Regenerate ``reports/fashion`` from the checkpoints committed in ``checkpoints/reference``.

    .venv/bin/python -m reports.scripts.regenerate_fashion

V-MoE and V-MoE with PRC on Fashion-MNIST, with k = 2 and k = 1, fine-tuned from one pretrained model each
(``checkpoints/train.py``). A folder per training seed: accuracy on all 10,000 test images, routing on 4,000 of them,
fewer in routes; of the first seed also settings at test time, little room, a sweep of noise, and pictures.
"""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from moeprobe import api
from moeprobe.runtime.files import write_csv
from reports.scripts.contrasts import interval, shares
from reports.scripts.objectives import MODELS
from reports.scripts.regenerate import CHECKPOINTS, replace

# Relative, since the sidecars remember where things lay: run this in the root of the checkout.
REPORT = Path("reports/fashion")
SEEDS = (0, 1, 2)
# What is served at test time, beside what was trained.
SERVED = {
    "": "as trained",
    ",top_k=1": "k = 1",
    ",top_k=1,renormalise=true": "k = 1, weights divided by their sum",
    ",top_k=2": "k = 2",
    ",top_k=2,renormalise=true": "k = 2, weights divided by their sum",
    ",experts=off": "experts off",
}
# How much room an expert has, as a multiple of its even share.
FACTORS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
PRIORITIES = {"order": "in their order", "gate": "the surest first"}
# What the paper says of its Tables 2 and 3 together: name, and the sign of each model's accuracy.
GAPS = {
    "V-MoE with PRC, k = 2, less V-MoE, k = 2": {("prc", 2): 1, ("baseline", 2): -1},
    "V-MoE with PRC, k = 1, less V-MoE, k = 1": {("prc", 1): 1, ("baseline", 1): -1},
    "V-MoE with PRC, k = 1, less V-MoE, k = 2": {("prc", 1): 1, ("baseline", 2): -1},
    "the difference at k = 1 less that at k = 2": {
        ("prc", 1): 1,
        ("baseline", 1): -1,
        ("prc", 2): -1,
        ("baseline", 2): 1,
    },
}


def checkpoints(seed: int) -> dict[str, str]:
    """Return the checkpoints of a training seed, k = 2 before k = 1, and what pages call them."""
    return {
        checkpoint(objective, top_k, seed): f"{model}, k = {top_k}"
        for top_k in (2, 1)
        for objective, model in MODELS.items()
    }


def checkpoint(objective: str, top_k: int, seed: int) -> str:
    """Return what a checkpoint is called."""
    return f"fashion-{objective}-k{top_k}-seed{seed}"


def main(seeds: list[int]) -> None:
    """Probe, and replace the folder of each seed when all of it is there."""
    # How products are cut into threads shows in their last digits, and with them in every CSV.
    torch.set_num_threads(1)
    for seed in seeds:
        regenerate(seed)


def regenerate(seed: int) -> None:
    """Write ``reports/fashion/seedN``."""
    report = REPORT / f"seed{seed}"
    staging = report.with_name(f"{report.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    for name, probe, models, more in questions(seed):
        probe(
            [CHECKPOINTS / model for model in models],
            data="fashion_mnist",
            out=staging / name,
            device="cpu",
            command="make reports-fashion",
            **more,
        )
    write_csv(staging / "gaps.csv", gaps(staging / "eval", seed))
    replace(staging, report)


def questions(seed: int) -> Iterator[tuple[str, Any, list[str], dict[str, Any]]]:
    """Yield what is asked: the folder of the answer, the probe, checkpoints (the first is the reference), options."""
    four = list(checkpoints(seed))
    two, one = four[:2], four[2:]
    yield "eval", api.evaluate, four, {}
    yield "match-ratio", api.match_ratio, two, {"view": "prc_crops", "limit": 4000}
    yield "match-ratio-k1", api.match_ratio, one, {"view": "prc_crops", "limit": 4000}
    yield "routes", api.routes, two, {"limit": 2000}
    if seed != SEEDS[0]:
        return
    yield "noise-sweep", api.noise_sweep, two, {"sigmas": (0.0, 0.05, 0.1, 0.2), "limit": 500}
    yield "settings", api.evaluate, [f"{model}{served}" for model in four for served in SERVED], {}
    for model in two:
        limited = [limit(model, factor, priority) for factor in FACTORS for priority in PRIORITIES]
        more = {"limit": 4000, "group_images": 8}
        yield f"capacity-{model}", api.evaluate, [model, *limited], more
    yield "overlay", api.overlay, two, {"severity": 0.1, "count": 6}


def limit(model: str, factor: float, priority: str) -> str:
    """Return a checkpoint with little room, as settings say it."""
    return f"{model},capacity={factor},priority={priority}"


def gaps(run: Path, seed: int) -> pd.DataFrame:
    """Return the differences that the paper speaks of, image by image, with intervals over images."""
    right = shares(run, "accuracy", "labelled")
    rows = []
    for name, signs in GAPS.items():
        parts = [sign * right[checkpoint(*model, seed)] for model, sign in signs.items()]
        assert all(part.index.equals(parts[0].index) for part in parts)
        difference = np.sum([part.to_numpy() for part in parts], axis=0)
        rows.append({"contrast": name, "seed": seed} | interval(difference, most=len(signs) / 2))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    main(parser.parse_args().seeds)
