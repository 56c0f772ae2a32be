"""What a table of ``precision`` says: which part moves most choices when it is rounded."""

from collections.abc import Sequence

import pandas as pd

from moeprobe.results.layouts.by_view import flips


def by_part(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about tokens that choose otherwise, with ``part`` and ``format``."""
    rows = flips(table)
    words = rows["view"].str.split(" ", n=1)
    return rows.assign(part=words.str[0], format=words.str[1])


def sentences(table: pd.DataFrame, *, formats: Sequence[str], whole: str) -> list[str]:
    """Return a sentence per format: means over layers and checkpoints; ``whole`` names the part that is all of them."""
    rows = by_part(table)
    means = rows.groupby(["format", "part"], sort=False)["value"].mean()
    lines = []
    for name in [name for name in formats if name in set(rows["format"])]:
        alone = means[name].drop(whole, errors="ignore").sort_values(ascending=False, kind="stable")
        parts = ", ".join(f"{part} {_share(value)}" for part, value in alone.items())
        together = f"; all of it {_share(means[name][whole])}" if whole in means[name] else ""
        lines.append(
            f"{name}, tokens that choose other experts where one part is rounded: {parts}{together}."
        )
    return lines


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"
