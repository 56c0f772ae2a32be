"""What the page on aligned experts says, in Markdown."""

from pathlib import Path

import pandas as pd

from reports.scripts.regenerate_align import DIFFERENCE, PAIRS, SHARES


def shares(folder: Path) -> list[str]:
    """Return which share of routing data determine: a line per data set, k, MoE layer and model."""
    table = pd.read_csv(folder / "shares.csv")
    # The seed's share is what data leave.
    names = [name for name in SHARES.values() if name != "seed"]
    lines = [f"| data set | k | MoE layer | | {' | '.join(names)} |", f"|{'---|' * (4 + len(names))}"]
    for (data, top_k, layer, model), rows in table.groupby(["data", "k", "layer", "model"], sort=False):
        sign = "+" if model == DIFFERENCE else ""
        cells = [
            f"{row['value']:{sign}.2f} [{row['ci_low']:{sign}.2f}, {row['ci_high']:{sign}.2f}]"
            for _, row in rows.set_index("share").loc[names].iterrows()
        ]
        lines.append(f"| `{data}` | {top_k} | `{layer}` | {model} | {' | '.join(cells)} |")
    return lines


def pairs(folder: Path) -> list[str]:
    """Return the lowest and the highest pair of seeds: a line per data set, k, MoE layer and model."""
    table = pd.read_csv(folder / "pairs.csv")
    names = [name for name in PAIRS.values() if name != "p"]
    lines = [f"| data set | k | MoE layer | | {' | '.join(names)} |", f"|{'---|' * (4 + len(names))}"]
    for (data, top_k, layer, model), rows in table.groupby(["data", "k", "layer", "model"], sort=False):
        by_number = rows.set_index("number")
        cells = [
            f"{by_number.loc[name, 'lowest']:.3f} to {by_number.loc[name, 'highest']:.3f}" for name in names
        ]
        lines.append(f"| `{data}` | {top_k} | `{layer}` | {model} | {' | '.join(cells)} |")
    return lines
