"""Claims about other trainings and other images, as a page shows them."""

from pathlib import Path

import pandas as pd

# Number: metric (of the set for k experts), null; in the order of the page.
_NUMBERS = {
    "κ": ("{set}_kappa", "pooled"),
    "κ within image": ("{set}_kappa", "image"),
    "match of sets": ("{set}", ""),
    "κ₁": ("top1_match_kappa", "pooled"),
    "κ₁ within image": ("top1_match_kappa", "image"),
}
_VIEW = "random_crop"


def lines(folder: Path) -> list[str]:
    """Return the differences over trainings and images: a line per number, a column per layer and k, then accuracy.

    Args:
        folder: the file without its ending, e.g. ``reports/trainings/digits``.
    """
    table = pd.read_csv(folder.with_suffix(".csv"), dtype={"layer": str, "null": str, "view": str}).fillna(
        {"layer": "", "null": "", "view": ""}
    )
    layers = [layer for layer in dict.fromkeys(table["layer"]) if layer]
    columns = [(layer, top_k) for layer in layers for top_k in dict.fromkeys(table["top_k"])]
    heads = " | ".join(f"`{layer}`, k = {top_k}" for layer, top_k in columns)
    written = [f"| {_VIEW}, PRC minus V-MoE | {heads} |", f"|{'---|' * (len(columns) + 1)}"]
    of_view = table[table["view"] == _VIEW]
    for name, (metric, null) in _NUMBERS.items():
        cells = []
        for layer, top_k in columns:
            called = metric.format(set="top1_match" if top_k == 1 else f"top{top_k}_set_match")
            rows = of_view[(of_view["layer"] == layer) & (of_view["top_k"] == top_k)]
            cells.append(_cell(rows[(rows["metric"] == called) & (rows["null"] == null)]))
        written.append(f"| {name} | {' | '.join(cells)} |")
    accuracy = table[table["metric"] == "accuracy"]
    cells = [
        _cell(accuracy[accuracy["top_k"] == top_k]) if layer == layers[0] else "" for layer, top_k in columns
    ]
    return [*written, f"| accuracy (of the output) | {' | '.join(cells)} |"]


def _cell(rows: pd.DataFrame) -> str:
    """Return a mean difference with its simultaneous interval."""
    if rows.empty:
        return "–"
    [row] = rows.to_dict("records")
    return f"{row['value']:+.3f} [{row['sim_low']:+.3f}, {row['sim_high']:+.3f}]"
