"""Claims about other trainings and other images, as a page shows them."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from moeprobe.inputs.corruptions import FAMILIES, MEAN, NAMES
from reports.scripts.attack_tables import OBJECTIVES
from reports.scripts.claims import cell_of, of_sweep, read
from reports.scripts.more_tables import corruption_name
from reports.scripts.sweep_list import COMPARED, name_of

# Number: metric (of the set for k experts), null; in the order of the page.
_NUMBERS = {
    "κ": ("{set}_kappa", "pooled"),
    "κ within image": ("{set}_kappa", "image"),
    "match of sets": ("{set}", ""),
    "κ₁": ("top1_match_kappa", "pooled"),
    "κ₁ within image": ("top1_match_kappa", "image"),
    **{f"information on {what}": (f"{kind}_information", "") for kind, what in {
        "class": "class", "position": "position", "color": "brightness",
    }.items()},
}  # fmt: skip
# Crops: those of digits and shapes, and those of Fashion-MNIST.
_VIEWS = ("random_crop", "prc_crops")
_OF_ATTACKS = {
    "top-1 match": "top1_match",
    "match of sets": "top2_set_match",
    "busiest expert": "busiest_expert",
}


def lines(folder: Path) -> list[str]:
    """Return the differences over trainings and images: a line per number, a column per layer and k, then accuracy.

    Args:
        folder: the file without its ending, e.g. ``reports/trainings/digits``.
    """
    table = read(folder)
    view = next(name for name in _VIEWS if name in set(table["view"]))
    layers = [layer for layer in dict.fromkeys(table["layer"]) if layer]
    columns = [(layer, top_k) for layer in layers for top_k in dict.fromkeys(table["top_k"])]
    heads = " | ".join(f"`{layer}`, k = {top_k}" for layer, top_k in columns)
    written = [f"| {view}, PRC minus V-MoE | {heads} |", f"|{'---|' * (len(columns) + 1)}"]
    # Information is of clean images.
    of_view = table[table["view"].isin([view, "clean"])]
    for name, (metric, null) in _NUMBERS.items():
        cells = []
        for layer, top_k in columns:
            called = metric.format(set="top1_match" if top_k == 1 else f"top{top_k}_set_match")
            rows = of_view[(of_view["layer"] == layer) & (of_view["top_k"] == top_k)]
            cells.append(cell_of(rows[(rows["metric"] == called) & (rows["null"] == null)]))
        if set(cells) == {"–"}:
            continue
        written.append(f"| {name} | {' | '.join(cells)} |")
    accuracy = table[table["metric"] == "accuracy"]
    cells = [
        cell_of(accuracy[accuracy["top_k"] == top_k]) if layer == layers[0] else ""
        for layer, top_k in columns
    ]
    return [*written, f"| accuracy (of the output) | {' | '.join(cells)} |"]


def corruptions(folder: Path) -> list[str]:
    """Return the same under corruptions, means over severities: a line for all, for each family and each corruption."""
    table = read(folder)
    rows = {corruption_name(view): table[table["view"] == view] for view in (MEAN, *FAMILIES, *NAMES)}
    return _by_rows("under", rows, {"κ": "top2_set_match_kappa"})


def attacks(folder: Path) -> list[str]:
    """Return the same of attacked images: a line per attack and ε."""
    table = read(folder)
    rows = {
        f"{OBJECTIVES[view]} | {severity:g}": of_site
        for (view, severity), of_site in table.groupby(["view", "severity"], sort=False)
    }
    return _by_rows("attack on | ε", rows, _OF_ATTACKS)


def means(folder: Path) -> list[str]:
    """Return the means of differences of a sweep: a line per number of the output or of a layer, a column per mean."""
    claims, names = of_sweep(folder), list(COMPARED[name_of(folder)].means)
    written = [f"| MoE layer | | {' | '.join(names)} |", f"|{'---|' * (len(names) + 2)}"]
    for (number, layer), rows in claims.groupby(["number", "layer"], sort=False):
        cells = [cell_of(rows[rows["group"] == name]) for name in names]
        written.append(f"| {f'`{layer}`' if layer else 'output'} | {number} | {' | '.join(cells)} |")
    return written


def _by_rows(first: str, rows: Mapping[str, pd.DataFrame], metrics: Mapping[str, str]) -> list[str]:
    """Return a line per name: accuracy, and each metric in each layer, with k = 2."""
    layers = sorted({layer for part in rows.values() for layer in part["layer"] if layer})
    columns = {"accuracy": ("accuracy", "")}
    columns |= {f"{name}, `{layer}`": (metric, layer) for name, metric in metrics.items() for layer in layers}
    written = [f"| {first} | {' | '.join(columns)} |"]
    written.append(f"|{'---|' * (written[0].count(' | ') + 1)}")
    for name, part in rows.items():
        cells = [
            cell_of(part[(part["metric"] == metric) & (part["layer"] == layer)])
            for metric, layer in columns.values()
        ]
        written.append(f"| {name} | {' | '.join(cells)} |")
    return written
