"""How often does the gate of a comparison fail a model that is no worse? Experiments with two equal models.

Writes ``reports/gate/table.csv``, which docs/concepts/interval-coverage.md shows.

    python -m benchmarks.gate --runs 200

Two models have the same true routing, so whatever ``compare --fail-if-worse`` says is worse is an error. An image is
easy or hard for both models and in all layers alike, and prefers its own experts; on top of that either model has
images that are hard for it alone. Layers and kinds of tokens of an image vary together. No model is needed.

Axes: n images, P patches, E experts.
"""

import argparse
import csv
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.judging import differences
from moeprobe.metrics.analyses.match import Match
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from moeprobe.studies.compare import Gate

CSV = Path(__file__).parents[1] / "reports" / "gate" / "table.csv"
FIELDS = ("metric", "family", "images", "layers", "kinds", "cells", "runs", "failed", "share", "nominal")
IMAGES = (50, 200)
LAYERS, PATCHES, EXPERTS = 3, 16, 8
METRICS = ("top1_match", "top1_match_kappa")
# An interval leaves the truth out in 5 % of experiments, half of them on the side that is worse.
NOMINAL = 0.025
ONE, EACH = "all cells together", "each kind of tokens and null alone"

_REFERENCE, _OTHER = "reference", "other"
_REGIONS = ("background", "boundary", "foreground")
# How steady patches of a region are, and the CLS token, in log odds: patches at the edge of the object the least.
_STEADY = {"background": 2.0, "boundary": 0.8, "foreground": 1.4, "prefix": 2.5}
# Standard deviations of the images' own log odds: of both models in all layers, of one model, of one layer of it.
_SHARED, _OWN, _OF_LAYER = 0.8, 0.5, 0.3
# Images' preferences of experts vary like a Dirichlet's of this sum of parameters.
_CLUSTERING = 3.0
_LOAD = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.07, 0.05, 0.03])
_ABOUT = About("gate", "made-up", "test", 0, aligned=True, train_seeds={}, groups={})

Choices = NDArray[np.int64]
Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Outcome:
    """What one experiment came to.

    Attributes:
        metric: what was judged.
        family: what was judged together: ``ONE`` or ``EACH``.
        failed: whether the gate failed.
        cells: number of comparisons.
    """

    metric: str
    family: str
    failed: bool
    cells: int


def experiment(num_images: int, run: int, *, seed: int = 0, layers: int = LAYERS) -> list[Outcome]:
    """Return what became of the gate in one experiment, for each metric and family."""
    rng = np.random.default_rng([seed, num_images, run])
    sums = of_table(concatenate(list(_models(rng, num_images, layers))))
    outcomes = []
    for together in (*METRICS, None):
        table = differences.compare(
            sums,
            analyses=[Match()],
            run_info=_ABOUT,
            selected_pairs=[(_OTHER, _REFERENCE)],
            together=together,
        )
        for metric in METRICS if together is None else (together,):
            cells = int((table["metric"] == metric).sum())
            failed = len(Gate(metric, None).failures(table)) > 0
            outcomes.append(Outcome(metric, EACH if together is None else ONE, failed, cells))
    return outcomes


def _models(rng: np.random.Generator, num_images: int, layers: int) -> Iterator[Any]:
    """Yield the sums per image of two models that are equally steady."""
    ids = [f"{image:05d}" for image in range(num_images)]
    region = rng.choice(len(_REGIONS), size=(num_images, PATCHES), p=[0.5, 0.25, 0.25])
    shared = _SHARED * rng.standard_normal(num_images)
    for name in (_REFERENCE, _OTHER):
        sums = Accumulator()
        own = shared + _OWN * rng.standard_normal(num_images)
        for layer in range(layers):
            ease = own + _OF_LAYER * rng.standard_normal(num_images)
            preferred = rng.dirichlet(_LOAD * _CLUSTERING, size=num_images)
            for tokens, columns in _layer(rng, ease, preferred, region).items():
                sums.add(
                    Cell(f"blocks.{2 * layer + 1}", "made_up", 1, "made_up", float("nan"), 0, tokens),
                    ids,
                    columns,
                )
        yield image_table(sums, checkpoint=name)


def _layer(
    rng: np.random.Generator, ease: NDArray[np.float64], preferred: NDArray[np.float64], region: Choices
) -> dict[str, Columns]:
    """Return the columns of each kind of tokens of a layer, by its name."""
    odds = np.array([_STEADY[name] for name in _REGIONS])[region] + ease[:, None]
    odds = np.concatenate([odds, _STEADY["prefix"] + ease[:, None]], 1)
    reference, again = (_choose(rng, preferred) for _ in range(2))
    kept = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
    view = np.where(kept, reference, again)
    there = np.ones(region.shape, dtype=bool)
    found = {"patch": _columns(reference[:, :-1], view[:, :-1], there)}
    for code, name in enumerate(_REGIONS):
        found[name] = _columns(reference[:, :-1], view[:, :-1], region == code)
    return found | {"prefix": _columns(reference[:, -1:], view[:, -1:], there[:, :1])}


def _choose(rng: np.random.Generator, preferred: NDArray[np.float64]) -> Choices:
    """Return an expert for each patch and the CLS token ``(n, P + 1)`` of images with preferences ``(n, E)``."""
    drawn = rng.random((len(preferred), PATCHES + 1, 1))
    return (drawn > preferred.cumsum(1)[:, None, :-1]).sum(-1)


def _columns(reference: Choices, view: Choices, there: NDArray[np.bool_]) -> Columns:
    count = np.ones(len(reference), dtype=np.int64)
    return {
        "trials": there.sum(1),
        "top1_match": ((reference == view) & there).sum(1),
        "reference_selected": np.where(there, reference, -2)[..., None].astype(np.int16),
        "view_selected": np.where(there, view, -2)[..., None].astype(np.int16),
        "experts": EXPERTS * count,
        "unmoved": count,
    }


def rates(
    num_images: int, *, runs: int, seed: int = 0, layers: int = LAYERS, processes: int = 1
) -> list[dict[str, Any]]:
    """Return the share of experiments in which the gate fails, a row per metric and family, see ``FIELDS``."""
    one = partial(experiment, num_images, seed=seed, layers=layers)
    if processes == 1:
        found = [one(run) for run in range(runs)]
    else:
        with ProcessPoolExecutor(processes) as pool:
            found = list(pool.map(one, range(runs), chunksize=5))
    rows = []
    for outcomes in zip(*found, strict=True):
        failed = sum(outcome.failed for outcome in outcomes)
        first = outcomes[0]
        values = (first.metric, first.family, num_images, layers, len(_STEADY) + 1, first.cells)
        rows.append(dict(zip(FIELDS, (*values, runs, failed, failed / runs, NOMINAL), strict=True)))
    return rows


def main() -> None:
    """Run the experiments and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="experiments per number of images")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    CSV.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for number in IMAGES for row in rates(number, runs=asked.runs, processes=asked.processes)]
    with CSV.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
