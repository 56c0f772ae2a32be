"""Result tables for the screen."""

from typing import TYPE_CHECKING

from rich.table import Table

from moeprobe.cli._screen import console, interval, number

if TYPE_CHECKING:
    import pandas as pd

    from moeprobe.runs import Result

_NAMES = {
    "top1_match": "top-1 match",
    "top2_match": "top-2 match",
    "top2_set_match": "top-2 match, any order",
    "gate_highest": "highest gate",
    "gate_second": "second gate",
    "gate_rest": "sum of the rest",
    "gate_margin": "first − second",
    "load_entropy": "load entropy (1 = even)",
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "loss": "cross-entropy",
    "prediction_agreement": "same prediction as clean",
}


def side_by_side(result: "Result", *, title: str) -> list[Table]:
    """Return one table: a line per layer and metric, a column per checkpoint, the differences last."""
    checkpoints = list(dict.fromkeys(result.table["checkpoint"]))
    table = Table(title=title, title_justify="left", title_style="bold")
    stacked = console().width < 42 + 26 * (2 * len(checkpoints) - 1)
    for name in ("layer", "tokens"):
        table.add_column(name, no_wrap=True)
    table.add_column("metric", min_width=15)
    for checkpoint in checkpoints:
        table.add_column(checkpoint, justify="right", no_wrap=not stacked)
    for checkpoint in checkpoints[1:]:
        table.add_column(f"{checkpoint} −\n{checkpoints[0]}", justify="right", no_wrap=not stacked)
    keys = ["layer", "tokens", "metric", "null"]
    by_line = dict(tuple(result.table.groupby(keys, sort=False)))
    differences = (
        {} if result.comparison is None else dict(tuple(result.comparison.groupby(keys, sort=False)))
    )
    previous = None
    for key, rows in by_line.items():
        layer, tokens, metric, null = key
        cells = [interval(row, stacked=stacked) for _, row in rows.iterrows()]
        if key in differences:
            cells += [interval(row, signed=True, stacked=stacked) for _, row in differences[key].iterrows()]
        if previous is not None and previous[:2] != (layer, tokens):
            table.add_section()
        first = previous is None or previous[:2] != (layer, tokens)
        table.add_row(layer if first else "", tokens if first else "", label(metric, null), *cells)
        previous = key
    return [table]


def label(metric: str, null: str) -> str:
    """Return how a metric is called on the screen."""
    for suffix, text in (("_chance", "  by chance"), ("_kappa", "  κ")):
        if metric.endswith(suffix):
            return text if null == "pooled" else f"{text}, {null}"
    for depth in range(3, 100):
        if metric == f"top{depth}_match":
            return f"top-{depth} match"
        if metric == f"top{depth}_set_match":
            return f"top-{depth} match, any order"
    return _NAMES.get(metric, metric)


_SWEEP_COLUMNS = (
    ("top1_match", "", "top-1"),
    ("top1_match_kappa", "pooled", "κ"),
    ("top1_match_kappa", "position", "κ, position"),
    ("gate_highest", "", "highest gate"),
    ("load_entropy", "", "load entropy"),
)


def along_severity(result: "Result", *, title: str) -> list[Table]:
    """Return a table per layer and one of the output: a line per checkpoint and severity."""
    patches = result.table[result.table["tokens"] == "patch"]
    tables = [
        _severity_table(
            result, patches[patches["layer"] == layer], _SWEEP_COLUMNS, f"{title}: {layer}, patches"
        )
        for layer in dict.fromkeys(patches["layer"])
    ]
    output = result.table[result.table["layer"] == ""]
    columns = tuple(
        (name, "", _NAMES[name])
        for name in ("accuracy", "prediction_agreement", "loss")
        if (output["metric"] == name).any()
    )
    if len(output):
        tables.append(_severity_table(result, output, columns, f"{title}: output"))
    return tables


def _severity_table(
    result: "Result", rows: "pd.DataFrame", columns: tuple[tuple[str, str, str], ...], title: str
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    stacked = console().width < 40 + 25 * len(columns)
    table.add_column("checkpoint")
    table.add_column("severity", justify="right", no_wrap=True)
    for _, _, name in columns:
        table.add_column(name, justify="right", no_wrap=not stacked)
    blocks = [(checkpoint, part, False) for checkpoint, part in rows.groupby("checkpoint", sort=False)]
    if result.comparison is not None:
        layers = set(rows["layer"])
        compared = result.comparison[result.comparison["layer"].isin(layers)]
        compared = compared[compared["tokens"].isin(set(rows["tokens"]))]
        for (checkpoint, reference), part in compared.groupby(["checkpoint", "reference"], sort=False):
            blocks.append((f"{checkpoint} − {reference}", part, True))
    for checkpoint, part, signed in blocks:
        table.add_section()
        for line, (severity, here) in enumerate(part.groupby("severity", sort=False)):
            cells = []
            for metric, null, _ in columns:
                found = here[(here["metric"] == metric) & (here["null"] == null)]
                cells.append(interval(found.iloc[0], signed=signed, stacked=stacked) if len(found) else "")
            table.add_row(checkpoint if line == 0 else "", number(float(severity)), *cells)
    return table
