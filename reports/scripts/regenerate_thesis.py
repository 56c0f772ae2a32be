"""What Teo's thesis prints of its models, measured of finished trainings of digits.

    moeprobe tradeoff thesis-digits --out reports/sweeps/thesis-digits  # two hours of training, resumable
    moeprobe tradeoff manual-digits --out reports/sweeps/manual-digits
    python -m reports.scripts.regenerate_thesis
    python -m reports.scripts.pages

Cells that are not trained yet are left out. Writes ``reports/thesis/models.csv`` (accuracy, with the experts and
without any; batch-wise variation; parameters, FLOPs), ``manual.csv``, and the learning curves of Figures 2 and 3 in
``pretrain`` and ``finetune``. Training seeds are not pooled there. ``factors.csv`` says by which factor the variation
of two groups differs, over trainings and images at once.
"""

import dataclasses
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from moeprobe import api
from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.models import grid
from moeprobe.models.checkpoints.location import CHECKPOINTS
from moeprobe.models.pipeline import Pipeline
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results import finished as finished_runs
from moeprobe.results.values import Evaluator
from moeprobe.runtime.files import read_json, write_csv
from reports.scripts.thesis_tables import MANUAL, THEIRS

OUT = Path("reports/thesis")
# Figures 2 and 3: a stage, and what is drawn of it.
CURVES = {"pretrain": "val_loss", "finetune": "val_accuracy"}
VARIATION = "image_variation_gates"
# Groups whose variation is compared with another's.
REFERENCES = {"moe": "token-choice"}
_ENDS = ["value", "ci_low", "ci_high"]


def main() -> None:
    """Measure what is trained, and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    trained = finished("thesis-digits")
    models = measured(trained, THEIRS)
    manual = measured(finished("manual-digits"), MANUAL)
    for name, table in (("models", models), ("manual", manual), ("factors", factors(trained))):
        if len(table):
            write_csv(OUT / f"{name}.csv", table)
    for stage, metric in CURVES.items():
        runs = [cell.folder / stage for cell in trained if stage in cell.stages]
        if runs:
            api.curves(runs, metric=metric, x="epoch", out=OUT / stage, overwrite=True)


def finished(sweep: str, *, checkpoints: Path = CHECKPOINTS) -> list[Pipeline]:
    """Return the cells of a sweep of pipelines whose last stage is trained."""
    cells = grid.load(sweep, checkpoints=checkpoints).pipelines.values()
    return [one for one in cells if (folder(one) / "finished.json").is_file()]


def folder(one: Pipeline) -> Path:
    """Return the run folder of the last stage."""
    return one.folder / list(one.stages)[-1]


def measured(cells: Iterable[Pipeline], known: Iterable[str], *, limit: int | None = None) -> pd.DataFrame:
    """Return a row per cell and number."""
    rows = []
    for cell in cells:
        config = list(cell.stages.values())[-1]
        if config.group not in list(known):
            continue
        about = {"group": config.group, "seed": config.seed}
        data, where = config.data.source, folder(cell)
        rows += [about | row for row in _accuracy(where, data, "accuracy", limit)]
        if not config.model.dense:
            rows += [
                about | row for row in _accuracy(f"{where},experts=off", data, "accuracy, experts off", limit)
            ]
            rows += [about | row for row in _variation(where, data, limit)]
        facts = inspect_checkpoint(where)
        rows += [
            about | {"number": number, "value": facts[key]}
            for number, key in (("parameters", "parameters"), ("FLOPs per image", "flops_per_image"))
        ]
        first = next(iter(cell.stages.values()))
        if first.route_by_class:
            with_labels = read_json(cell.folder / next(iter(cell.stages)) / "finished.json")["val_accuracy"]
            rows.append(about | {"number": "validation accuracy with the labels", "value": with_labels})
    return pd.DataFrame(rows)


def _accuracy(source: str | Path, data: str, number: str, limit: int | None) -> list[dict[str, Any]]:
    table = api.evaluate(source, data=data, limit=limit, device="cpu").table
    row = table[table["metric"] == "accuracy"].iloc[0]
    return [{"number": number, "images": row["images"], **{end: row[end] for end in _ENDS}}]


def _variation(source: Path, data: str, limit: int | None) -> list[dict[str, Any]]:
    """Return the batch-wise variation, mean over the MoE layers, as it is and as a share of the most it could be."""
    table = api.routes(source, data=data, count=0, limit=limit, device="cpu").table
    rows = []
    for number, metric in (("variation", VARIATION), ("variation, share", f"{VARIATION}_share")):
        values = table[(table["metric"] == metric) & (table["tokens"] == "patch")]
        if len(values):
            rows.append(
                {"number": number, "value": values["value"].mean(), "images": values["images"].iloc[0]}
            )
    return rows


def factors(cells: Iterable[Pipeline], *, limit: int | None = None) -> pd.DataFrame:
    """Return by which factor groups vary more than their references: a row each of three or more pairs of trainings.

    Differences of logarithms are compared over trainings and images (``TwoWay``), whose error and spreads are given;
    the value and the ends of its interval are factors.
    """
    groups = {*REFERENCES, *REFERENCES.values()}
    logarithms: dict[str, dict[int, Array]] = {group: {} for group in groups}
    for cell in cells:
        config = list(cell.stages.values())[-1]
        if config.group in groups:
            logarithms[config.group][config.seed] = _log_variation(folder(cell), config.data.source, limit)
    rows = []
    for group, reference in REFERENCES.items():
        of_group, of_reference = logarithms[group], logarithms[reference]
        seeds = sorted(of_group.keys() & of_reference.keys())
        if len(seeds) >= FEWEST:
            differences = np.array([of_group[seed] - of_reference[seed] for seed in seeds])
            found = TwoWay.of(differences)
            ends = dict(zip(_ENDS, map(math.exp, (found.value, *found.ends())), strict=True))
            about: dict[str, Any] = {"group": group, "reference": reference, "number": "variation"}
            about |= {"trainings": len(seeds), "images": differences.shape[1]}
            rows.append(about | dataclasses.asdict(found) | ends)
    return pd.DataFrame(rows)


def _log_variation(source: Path, data: str, limit: int | None) -> Array:
    """Return the logarithm of the variation, plus n times the influence of each image on it ``(n,)``."""
    name = NumberName(VARIATION, "")
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        api.routes(source, data=data, count=0, limit=limit, device="cpu", figures=False, out=run)
        evaluate = Evaluator(make_analyses(["variation"]), aligned=False, seed=0, influences=True)
        layers = [
            evaluate(stored) for stored in finished_runs.read(run).sums if stored.cell.tokens == "patch"
        ]
    # The variation of a model is the mean over its MoE layers.
    mean = np.mean([layer.numbers[name].point for layer in layers])
    influence = np.mean([layer.influences[name] for layer in layers], axis=0)
    return np.log(mean) + len(influence) * influence / mean


if __name__ == "__main__":
    main()
