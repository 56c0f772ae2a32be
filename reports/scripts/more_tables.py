"""What the pages on margins, other data, deformations, corruptions and narrower formats say, in Markdown."""

from pathlib import Path

import pandas as pd

from moeprobe.inputs.corruptions import FAMILIES, NAMES

SHOWN = (1, 3, 5, 7, 10)
_NAMES = {1: "least decile", 3: "third", 5: "fifth", 7: "seventh", 10: "largest"}
SIGMA = 0.2


def margins(folder: Path) -> list[str]:
    """Return which share of patches flips: a line per MoE layer, k and model, of all and by decile of the margin."""
    head = ["MoE layer", "k", "", "all", *(_NAMES[one] for one in SHOWN)]
    head += [f"margin, {_NAMES[one]}" for one in (5, 10)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    table = pd.read_csv(folder / "digits.csv")
    table = table[table["severity"] == SIGMA]
    for (layer, top_k, model), rows in table.groupby(["layer", "top_k", "model"]):
        cells = [span(rows.loc[rows["decile"] == decile, "value"]) for decile in (0, *SHOWN)]
        cells += [span(rows.loc[rows["decile"] == decile, "margin"]) for decile in (5, 10)]
        lines.append(f"| `{layer}` | {top_k} | {model} | {' | '.join(cells)} |")
    return lines


def areas(folder: Path) -> list[str]:
    """Return how well margins say which patches change: a line per MoE layer, model and margin."""
    table = pd.read_csv(folder / "digits-auc.csv")
    columns = list(dict.fromkeys(zip(table["severity"], table["event"], strict=True)))
    head = ["MoE layer", "", "margin", *(f"{event}, σ {sigma:g}" for sigma, event in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for (layer, model, margin), rows in table.groupby(["layer", "model", "margin"], sort=False):
        cells = [
            span(rows.loc[(rows["severity"] == sigma) & (rows["event"] == event), "value"])
            for sigma, event in columns
        ]
        lines.append(f"| `{layer}` | {model} | {margin} | {' | '.join(cells)} |")
    return lines


def deformations(folder: Path) -> list[str]:
    """Return κ and switches by view: a line per number, k and view."""
    head = ["", "k", "view", "severity", "V-MoE", "V-MoE with PRC", "difference"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    table = pd.read_csv(folder / "digits.csv", keep_default_na=False)
    for (metric, top_k, view), rows in table.groupby(["metric", "top_k", "view"], sort=False):
        name, digits = ("switches", 1) if metric == "switches" else ("κ", 3)
        sides = [span(rows[side], digits) for side in ("baseline", "prc")]
        renamed = rows.rename(columns={"difference_low": "ci_low", "difference_high": "ci_high"})
        apart = signed(renamed.assign(value=rows["difference"]), digits)
        severity = str(rows["severity"].iloc[0])
        lines.append(f"| {' | '.join([name, str(top_k), f'`{view}`', severity, *sides, apart])} |")
    return lines


def corruptions(folder: Path) -> list[str]:
    """Return accuracy and κ: a line for all corruptions, for each family, and for each corruption."""
    columns = {"accuracy": ("accuracy", ""), "κ": ("top2_set_match_kappa", "blocks.1")}
    head = ["", *(f"{name}, {side}" for name in columns for side in ("V-MoE", "PRC", "difference"))]
    head.append("κ in the last layer, difference")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    table = pd.read_csv(folder / "digits.csv", keep_default_na=False)
    by_place = dict(iter(table.groupby(["view", "metric", "layer", "model"], sort=False)))
    for view in ("mean", *FAMILIES, *NAMES):
        cells = [f"`{view}`" if view in NAMES else "**all**" if view == "mean" else f"*{view}*"]
        for metric, layer in columns.values():
            cells += [
                span(by_place[view, metric, layer, side]["value"]) for side in ("V-MoE", "V-MoE with PRC")
            ]
            cells.append(signed(by_place[view, metric, layer, "difference"]))
        cells.append(signed(by_place[view, "top2_set_match_kappa", "blocks.3", "difference"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def precision(folder: Path, name: str) -> list[str]:
    """Return which share of tokens chooses another first expert, of one of the tables in a folder."""
    return choices(pd.read_csv(folder / f"{name}.csv"))


def choices(table: pd.DataFrame) -> list[str]:
    """Return a line per format, a column per part of the model: means over layers and checkpoints."""
    rows = table[table["metric"] == "chooses_otherwise"]
    means = rows.groupby(["format", "part"], sort=False)["value"].mean()
    columns = ["router", "experts", "attention", "rest", "whole"]
    lines = [f"| format | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for form in dict.fromkeys(rows["format"]):
        cells = (f"{100 * means[form, part]:.2f} %" for part in columns)
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return lines


def transfer(folder: Path) -> list[str]:
    """Return the accuracy with ten shots of other data: a line per data set and k."""
    lines = ["| trained on | shots of | images | k | by chance | V-MoE | V-MoE with PRC | difference |"]
    lines.append(f"|{'---|' * 8}")
    for path in sorted(folder.glob("*.csv")):
        table = pd.read_csv(path)
        for top_k, rows in table.groupby("top_k", sort=False):
            values = rows[rows["kind"] == "value"]
            of = {
                (number, model): own["value"] for (number, model), own in values.groupby(["number", "model"])
            }
            chance = span(pd.concat([one for (number, _), one in of.items() if number == "by chance"]))
            sides = [span(of["accuracy", model]) for model in ("V-MoE", "V-MoE with PRC")]
            apart = rows[(rows["kind"] == "difference") & (rows["number"] == "accuracy")]
            about = [rows["trained_on"].iloc[0], path.stem, f"{rows['images'].iloc[0]}", f"{top_k}"]
            lines.append(f"| {' | '.join([*about, chance, *sides, signed(apart)])} |")
    return lines


def span(values: pd.Series, digits: int = 3) -> str:
    """Return the lowest and the highest of the seeds."""
    ends = dict.fromkeys(f"{end:.{digits}f}" for end in (values.min(), values.max()))
    return " to ".join(ends)


def signed(rows: pd.DataFrame, digits: int = 3) -> str:
    """Return the lowest and highest difference, and how many intervals lie on one side of zero."""
    counted = {"+": int((rows["ci_low"] > 0).sum()), "−": int((rows["ci_high"] < 0).sum())}
    said = ", ".join(f"{number}{sign}" for sign, number in counted.items() if number) or "0"
    return f"{rows['value'].min():+.{digits}f} to {rows['value'].max():+.{digits}f} ({said})"
