"""Regenerate ``reports/fashion`` from the checkpoints committed in ``checkpoints/reference``.

    .venv/bin/python reports/regenerate_fashion.py

V-MoE and V-MoE with PRC on Fashion-MNIST, with k = 2 and k = 1, fine-tuned from one pretrained model each
(``checkpoints/train.py``): accuracy on all 10,000 test images, routing on 4,000 of them, fewer in the sweep of noise
and in routes.
"""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from regenerate import CHECKPOINTS, replace

from moeprobe import api

# Relative, since the sidecars remember where things lay: run this in the root of the checkout.
REPORT = Path("reports/fashion")
SEED = 0
NAMES = {
    f"fashion-{objective}-k{top_k}-seed{SEED}": f"{model}, k = {top_k}"
    for top_k in (2, 1)
    for objective, model in (("baseline", "V-MoE"), ("prc", "V-MoE with PRC"))
}
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


def main() -> None:
    """Probe, and replace the report when all is there."""
    # How products are cut into threads shows in their last digits, and with them in every CSV.
    torch.set_num_threads(1)
    staging = REPORT.with_name("fashion.new")
    shutil.rmtree(staging, ignore_errors=True)
    for name, probe, models, more in questions():
        paths = [CHECKPOINTS / model for model in models]
        probe(
            paths,
            data="fashion_mnist",
            out=staging / name,
            device="cpu",
            command="make reports-fashion",
            **more,
        )
    replace(staging, REPORT)


def questions() -> list[tuple[str, Any, list[str], dict[str, Any]]]:
    """Return what is asked: the folder of the answer, the probe, checkpoints (the first is the reference), options."""
    four = list(NAMES)
    two, one = four[:2], four[2:]
    return [
        ("eval", api.evaluate, four, {}),
        ("eval-k1", api.evaluate, one, {}),
        ("match-ratio", api.match_ratio, two, {"view": "prc_crops", "limit": 4000}),
        ("match-ratio-k1", api.match_ratio, one, {"view": "prc_crops", "limit": 4000}),
        ("routes", api.routes, two, {"limit": 2000}),
        ("noise-sweep", api.noise_sweep, two, {"sigmas": (0.0, 0.05, 0.1, 0.2), "limit": 500}),
        ("settings", api.evaluate, [f"{model}{settings}" for model in four for settings in SERVED], {}),
        *(
            (f"capacity-{model}", api.evaluate, [model, *_limited(model)], {"limit": 4000, "group_images": 8})
            for model in two
        ),
        ("overlay", api.overlay, two, {"severity": 0.1, "count": 6}),
    ]


def fashion_accuracies(folder: Path) -> list[str]:
    """Return accuracies, the differences from V-MoE of the same k, and those from V-MoE with k = 2."""
    values = _of(folder / "eval/table.csv", "accuracy").set_index("checkpoint")
    from_two = _of(folder / "eval/comparison.csv", "accuracy").set_index("checkpoint")
    from_one = _of(folder / "eval-k1/comparison.csv", "accuracy").set_index("checkpoint")
    four = list(NAMES)
    same_k = {four[1]: from_two.loc[four[1]], four[3]: from_one.loc[four[3]]}
    lines = [
        "| | accuracy | less V-MoE of the same k | less V-MoE with k = 2 |",
        "|---|---|---|---|",
    ]
    for name, label in NAMES.items():
        cells = [
            _cell(values.loc[name]),
            _cell(same_k[name], signed=True) if name in same_k else "",
            _cell(from_two.loc[name], signed=True) if name in from_two.index else "",
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def fashion_in_short(folder: Path) -> list[str]:
    """Return what matters most of the models with k = 2: the first MoE layer, then the accuracy."""
    asked = [
        ("match-ratio", "top1_match_kappa", "pooled", "prc_crops: κ"),
        ("match-ratio", "top1_match_kappa", "image", "prc_crops: κ within image"),
        ("routes", "class_information", "", "information of experts on class"),
        ("routes", "position_information", "", "information of experts on position"),
        ("match-ratio", "dead_experts", "", "dead experts"),
    ]
    lines = ["| | V-MoE | V-MoE with PRC | difference |", "|---|---|---|---|"]
    for part, metric, null, label in asked:
        table, paired = (_patches(folder / part / file) for file in ("table.csv", "comparison.csv"))
        first = table["layer"].iloc[0]
        digits = 0 if metric == "dead_experts" else 3
        cells = [_cell(row, digits=digits) for _, row in _row(table, first, metric, null).iterrows()]
        cells += [
            _cell(row, signed=True, digits=digits) for _, row in _row(paired, first, metric, null).iterrows()
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    two = list(NAMES)[:2]
    values, paired = (_of(folder / "eval" / file, "accuracy") for file in ("table.csv", "comparison.csv"))
    cells = [_cell(values.set_index("checkpoint").loc[name]) for name in two]
    cells.append(_cell(paired.set_index("checkpoint").loc[two[1]], signed=True))
    return [*lines, f"| accuracy | {' | '.join(cells)} |"]


def fashion_matches(folder: Path) -> list[str]:
    """Return match and κ of corresponding patches by layer and k, and the differences."""
    numbers = {
        ("top1_match", ""): "top-1 match",
        ("top1_match_kappa", "pooled"): "κ",
        ("top1_match_kappa", "image"): "κ within image",
        ("load_entropy", ""): "load entropy",
    }
    lines = ["| MoE layer | k | | V-MoE | V-MoE with PRC | difference |", "|---|---|---|---|---|---|"]
    for part, top_k in (("match-ratio", 2), ("match-ratio-k1", 1)):
        table, paired = (_patches(folder / part / file) for file in ("table.csv", "comparison.csv"))
        for layer in dict.fromkeys(table["layer"]):
            for (metric, null), label in numbers.items():
                rows = [_row(one, layer, metric, null) for one in (table, paired)]
                cells = [_cell(row) for _, row in rows[0].iterrows()]
                cells += [_cell(row, signed=True) for _, row in rows[1].iterrows()]
                lines.append(f"| `{layer}` | {top_k} | {label} | {' | '.join(cells)} |")
    return lines


def fashion_information(folder: Path) -> list[str]:
    """Return what a patch's expert says of class, place and color, of the models with k = 2."""
    numbers = {
        ("class_information", ""): "class",
        ("position_information", ""): "position",
        ("color_information", ""): "brightness",
    }
    table, paired = (_patches(folder / "routes" / file) for file in ("table.csv", "comparison.csv"))
    lines = ["| MoE layer | information on | V-MoE | V-MoE with PRC | difference |", "|---|---|---|---|---|"]
    for layer in dict.fromkeys(table["layer"]):
        for (metric, null), label in numbers.items():
            cells = [_cell(row) for _, row in _row(table, layer, metric, null).iterrows()]
            cells += [_cell(row, signed=True) for _, row in _row(paired, layer, metric, null).iterrows()]
            if cells:
                lines.append(f"| `{layer}` | {label} | {' | '.join(cells)} |")
    return lines


def fashion_settings(folder: Path) -> list[str]:
    """Return the accuracy of each model (columns) under each setting (rows)."""
    values = _of(folder / "settings/table.csv", "accuracy").set_index("checkpoint")
    lines = [f"| served | {' | '.join(NAMES.values())} |", f"|{'---|' * (len(NAMES) + 1)}"]
    for settings, label in SERVED.items():
        cells = [_cell(values.loc[f"{name}{settings}"]) for name in NAMES]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def fashion_capacity(folder: Path) -> list[str]:
    """Return what little room changes in the accuracy of the models with k = 2, by who takes the room first."""
    two = list(NAMES)[:2]
    paired = {
        name: _of(folder / f"capacity-{name}/comparison.csv", "accuracy").set_index("checkpoint")
        for name in two
    }
    columns = [f"{NAMES[name]}, {label}" for name in two for label in PRIORITIES.values()]
    lines = [f"| capacity | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 1)}"]
    for factor in FACTORS:
        cells = [
            _cell(paired[name].loc[f"{name},capacity={factor},priority={priority}"], signed=True)
            for name in two
            for priority in PRIORITIES
        ]
        lines.append(f"| {factor:g} | {' | '.join(cells)} |")
    return lines


def _limited(model: str) -> list[str]:
    """Return a checkpoint with little room, as settings say it."""
    return [f"{model},capacity={factor},priority={priority}" for factor in FACTORS for priority in PRIORITIES]


def _of(path: Path, metric: str) -> pd.DataFrame:
    table = pd.read_csv(path)
    return table[table["metric"] == metric]


def _patches(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path, keep_default_na=False, na_values={"value": [""]})
    return table[table["tokens"] == "patch"]


def _row(table: pd.DataFrame, layer: str, metric: str, null: str) -> pd.DataFrame:
    named = (table["layer"] == layer) & (table["metric"] == metric)
    return table[named & (table["null"] == null)]


def _cell(row: pd.Series, *, signed: bool = False, digits: int = 3) -> str:
    form = f"{'+' if signed else ''}.{digits}f"
    # Of a rounded -0.0 the sign is dropped.
    rounded = (round(float(row[key]), digits) + 0.0 for key in ("value", "ci_low", "ci_high"))
    value, low, high = (f"{number:{form}}" for number in rounded)
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
