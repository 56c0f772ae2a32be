"""What pages say of ``reports/fashion``, in Markdown: values of the first training seed, differences of each."""

from pathlib import Path

import numpy as np
import pandas as pd

from reports.scripts.regenerate_fashion import (
    FACTORS,
    GAPS,
    MODELS,
    PRIORITIES,
    SEEDS,
    SERVED,
    checkpoint,
    checkpoints,
    limit,
)

FIRST = SEEDS[0]
_DIFFERENCES = [f"difference, seed {seed}" for seed in SEEDS]


def accuracies(folder: Path) -> list[str]:
    """Return the accuracy of each model of each seed, mean and standard deviation of the seeds, and the differences."""
    lines = _header("", [*(f"seed {seed}" for seed in SEEDS), "mean ± sd of the seeds"])
    by_seed = [_accuracy(folder / f"seed{seed}/eval/table.csv") for seed in SEEDS]
    for top_k in (2, 1):
        for objective, model in MODELS.items():
            own = [
                values.loc[checkpoint(objective, top_k, seed)]
                for seed, values in zip(SEEDS, by_seed, strict=True)
            ]
            cells = [_cell(row) for row in own]
            lines.append(_line(f"{model}, k = {top_k}", [*cells, _spread(own)]))
    gaps = [pd.read_csv(folder / f"seed{seed}/gaps.csv").set_index("contrast") for seed in SEEDS]
    for name in GAPS:
        own = [table.loc[name] for table in gaps]
        lines.append(_line(name, [*(_cell(row, signed=True) for row in own), _spread(own, signed=True)]))
    return lines


def matches(folder: Path) -> list[str]:
    """Return match, κ and load of corresponding patches by layer and k."""
    numbers = {
        ("top1_match", ""): "top-1 match",
        ("top1_match_kappa", "pooled"): "κ₁",
        ("top1_match_kappa", "image"): "κ₁ within image",
        ("load_entropy", ""): "load entropy",
    }
    lines = _header("MoE layer | k | ", [*MODELS.values(), *_DIFFERENCES])
    of_sets = {
        ("top2_set_match", ""): "top-2 match, any order",
        ("top2_set_match_kappa", "pooled"): "κ",
        ("top2_set_match_kappa", "image"): "κ within image",
    }
    for part, top_k in (("match-ratio", 2), ("match-ratio-k1", 1)):
        for layer in _layers(folder, part, "load_entropy"):
            for (metric, null), label in (numbers | (of_sets if top_k > 1 else {})).items():
                rows = _rows(folder, part, metric, null)
                cells = _compared(rows[rows["layer"] == layer])
                lines.append(_line(f"`{layer}` | {top_k} | {label}", cells))
    return lines


def information(folder: Path) -> list[str]:
    """Return what a patch's expert says of class, place and color, of the models with k = 2."""
    numbers = {"class": "class", "position": "position", "color": "brightness"}
    lines = _header("MoE layer | information on", [*MODELS.values(), *_DIFFERENCES])
    for layer in _layers(folder, "routes", "class_information"):
        for kind, label in numbers.items():
            rows = _rows(folder, "routes", f"{kind}_information", "")
            lines.append(_line(f"`{layer}` | {label}", _compared(rows[rows["layer"] == layer])))
    return lines


def settings(folder: Path) -> list[str]:
    """Return the accuracy of each model of the first seed (columns) under each setting (rows)."""
    values = _accuracy(folder / f"seed{FIRST}/settings/table.csv")
    names = checkpoints(FIRST)
    lines = _header("served", list(names.values()))
    for served, label in SERVED.items():
        lines.append(_line(label, [_cell(values.loc[f"{name}{served}"]) for name in names]))
    return lines


def capacity(folder: Path) -> list[str]:
    """Return what little room changes in the accuracy of the first seed's models with k = 2, by who comes first."""
    rows = limited(folder)
    columns = rows[["model", "priority"]].drop_duplicates().itertuples(index=False)
    lines = _header("capacity", [f"{model}, {PRIORITIES[priority]}" for model, priority in columns])
    for factor, own in rows.groupby("capacity", sort=True):
        lines.append(_line(f"{factor:g}", [_cell(row, signed=True) for _, row in own.iterrows()]))
    return lines


def limited(folder: Path) -> pd.DataFrame:
    """Return the differences of accuracy that little room makes: a row per model, priority and capacity."""
    rows = []
    for name, label in list(checkpoints(FIRST).items())[:2]:
        paired = _accuracy(folder / f"seed{FIRST}/capacity-{name}/comparison.csv")
        for priority in PRIORITIES:
            own = paired.loc[[limit(name, factor, priority) for factor in FACTORS]]
            rows.append(own.assign(model=label, priority=priority, capacity=FACTORS))
    return pd.concat(rows, ignore_index=True)


def _header(first: str, columns: list[str]) -> list[str]:
    line = _line(first, columns)
    return [line, f"|{'---|' * (line.count('|') - 1)}"]


def _line(first: str, cells: list[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _accuracy(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path)
    return table[table["metric"] == "accuracy"].set_index("checkpoint")


def _rows(folder: Path, part: str, metric: str, null: str) -> pd.DataFrame:
    """Return one number of patches, or of the output: values and differences, of all seeds, layer by layer."""
    tables = []
    for seed in SEEDS:
        for file in ("table.csv", "comparison.csv"):
            path = folder / f"seed{seed}" / part / file
            table = pd.read_csv(path, keep_default_na=False, na_values={"value": [""]})
            tables.append(table.assign(kind=path.stem, train_seed=seed))
    every = pd.concat(tables)
    pair = {
        checkpoint(objective, top_k, seed) for objective in MODELS for top_k in _KS[part] for seed in SEEDS
    }
    kept = (every["metric"] == metric) & (every["null"] == null) & every["checkpoint"].isin(pair)
    return every[kept & every["tokens"].isin(["", "patch"])]


# With how many experts per token the models of a part are compared.
_KS = {"match-ratio": (2,), "match-ratio-k1": (1,), "routes": (2,), "eval": (2,)}


def _layers(folder: Path, part: str, metric: str) -> list[str]:
    return list(dict.fromkeys(_rows(folder, part, metric, "")["layer"]))


def _compared(rows: pd.DataFrame, *, digits: int = 3) -> list[str]:
    """Return the values of the first seed and the differences of all."""
    values = rows[(rows["kind"] == "table") & (rows["train_seed"] == FIRST)]
    differences = rows[rows["kind"] == "comparison"]
    assert (len(values), len(differences)) == (len(MODELS), len(SEEDS))
    return [
        *(_cell(row, digits=digits) for _, row in values.iterrows()),
        *(_cell(row, signed=True, digits=digits) for _, row in differences.iterrows()),
    ]


def _spread(rows: list[pd.Series], *, signed: bool = False) -> str:
    """Return mean and standard deviation (n - 1) of the training seeds."""
    values = np.array([float(row["value"]) for row in rows])
    return f"{values.mean():{'+' if signed else ''}.3f} ± {values.std(ddof=1):.3f}"


def _cell(row: pd.Series, *, signed: bool = False, digits: int = 3) -> str:
    form = f"{'+' if signed else ''}.{digits}f"
    # Of a rounded -0.0 the sign is dropped.
    rounded = (round(float(row[key]), digits) + 0.0 for key in ("value", "ci_low", "ci_high"))
    value, low, high = (f"{number:{form}}" for number in rounded)
    return f"{value} [{low}, {high}]"
