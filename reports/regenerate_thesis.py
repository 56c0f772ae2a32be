"""Tables 3 to 6 of Teo's thesis for our data, theirs beside, from finished trainings.

    moeprobe tradeoff thesis-digits --out reports/thesis/sums       # hours of training, resumable
    moeprobe tradeoff manual-digits --out reports/thesis/manual
    python reports/regenerate_thesis.py

Cells that are not trained yet are left out. Writes ``reports/thesis/models.csv`` (accuracy, with the experts and
without any; batch-wise variation; parameters, FLOPs), ``manual.csv`` and ``tables.md``. Training seeds are not pooled.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from moeprobe import api
from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.models import grid
from moeprobe.models.pipeline import Pipeline
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.files import read_json, write_text

OUT = Path("reports/thesis")
# What the thesis calls the cells of the sweep, and its values: Tables 3 and 4; None where it has none.
THEIRS: dict[str, tuple[str, float | None, float | None, float | None]] = {
    "dense": ("dense transformer", 0.724, None, 4.8),
    "moe": ("MoE, dense to sparse", 0.751, 32.3, 5.1),
    "moe-kl": ("the same, gates near to the dense ones", None, None, None),
    "expert-choice": ("expert choice", 0.744, 9.9, 5.1),
    "token-choice": ("token choice", 0.732, 10.3, 5.1),
    "priority": ("priority routing", 0.728, 10.2, 5.1),
    "moe-whole_expert_dropout-0.1": ("MoE, 10 % of the experts dropped", 0.747, None, None),
    "moe-expert_dropout-0.1": ("MoE, 10 % of the units dropped", None, None, None),
}
# Table 5: with the experts, and without any.
OFF: dict[str, tuple[float | None, float | None]] = {
    "moe": (0.753, 0.248),
    "moe-whole_expert_dropout-0.1": (0.747, 0.656),
    "moe-expert_dropout-0.1": (None, None),
}
# Table 6.
MANUAL = {"learned": ("token choice", 0.887), "manual": ("manual, then a learned gate", 0.914)}
VARIATION = "image_variation_gates"
_ENDS = ["value", "ci_low", "ci_high"]


def main() -> None:
    """Measure what is trained, and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    models = measured(finished("thesis-digits"), THEIRS)
    manual = measured(finished("manual-digits"), MANUAL)
    for name, table in (("models", models), ("manual", manual)):
        if len(table):
            write_csv(OUT / f"{name}.csv", table)
    write_text(OUT / "tables.md", tables(models, manual))


def finished(sweep: str, *, checkpoints: Path = Path("checkpoints")) -> list[Pipeline]:
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


def tables(models: pd.DataFrame, manual: pd.DataFrame) -> str:
    """Return the tables in Markdown: lowest to highest of the training seeds, the thesis' value beside."""
    parts = [
        "# Dense to sparse: Tables 3 to 6",
        'After C. Teo, "Exploring Mixture of Experts and Sparse Vision Transformers", on CIFAR-100 and MNIST '
        "there and digits here. Ours: lowest to highest of the training seeds (their number in brackets); – = not "
        "trained, or not published.",
    ]
    head = ["model", "accuracy", "theirs", "variation", "theirs", "share of the most"]
    rows = [
        [name, _span(models, group, "accuracy"), _share(accuracy), _span(models, group, "variation"), _plain(variation),
         _span(models, group, "variation, share")]
        for group, (name, accuracy, variation, _) in THEIRS.items()
    ]  # fmt: skip
    parts += ["## Table 3: accuracy and batch-wise variation", _table(head, rows)]
    head = ["model", "parameters, M", "theirs, M", "MFLOPs per image"]
    rows = [
        [
            name,
            _span(models, group, "parameters", 1e-6),
            _plain(size),
            _span(models, group, "FLOPs per image", 1e-6),
        ]
        for group, (name, _, _, size) in THEIRS.items()
    ]
    parts += ["## Table 4: parameters and FLOPs", _table(head, rows)]
    head = ["model", "accuracy", "theirs", "experts off", "theirs"]
    rows = [
        [THEIRS[group][0], _span(models, group, "accuracy"), _share(on), _span(models, group, "accuracy, experts off"),
         _share(off)]
        for group, (on, off) in OFF.items()
    ]  # fmt: skip
    parts += ["## Table 5: without experts", _table(head, rows)]
    head = ["routing", "accuracy, by the gate", "theirs", "on validation, with the labels: not comparable"]
    rows = [
        [name, _span(manual, group, "accuracy"), _share(theirs),
         _span(manual, group, "validation accuracy with the labels")]
        for group, (name, theirs) in MANUAL.items()
    ]  # fmt: skip
    parts += ["## Table 6: manual and learned routing", _table(head, rows)]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def _span(table: pd.DataFrame, group: str, number: str, scale: float = 1.0) -> str:
    if table.empty:
        return "–"
    values = table.loc[(table["group"] == group) & (table["number"] == number), "value"] * scale
    if values.empty:
        return "–"
    ends = dict.fromkeys(f"{end:.3f}" for end in (values.min(), values.max()))
    return f"{' to '.join(ends)} ({len(values)})"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


if __name__ == "__main__":
    main()
