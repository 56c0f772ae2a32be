"""What the page on margins, other data and natural deformations says, in Markdown: ranges over training seeds."""

from pathlib import Path

import pandas as pd

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


def span(values: pd.Series) -> str:
    """Return the lowest and the highest of the seeds."""
    ends = dict.fromkeys(f"{end:.3f}" for end in (values.min(), values.max()))
    return " to ".join(ends)


def signed(rows: pd.DataFrame) -> str:
    """Return the lowest and highest difference, and how many intervals lie on one side of zero."""
    counted = {"+": int((rows["ci_low"] > 0).sum()), "−": int((rows["ci_high"] < 0).sum())}
    said = ", ".join(f"{number}{sign}" for sign, number in counted.items() if number) or "0"
    return f"{rows['value'].min():+.3f} to {rows['value'].max():+.3f} ({said})"
