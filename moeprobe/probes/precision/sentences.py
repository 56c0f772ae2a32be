"""What a table of ``precision`` says: which part moves most choices when it is rounded."""

import pandas as pd

from moeprobe.probes.precision import FORMATS, WHOLE
from moeprobe.results.layouts.by_view import flips


def by_part(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about tokens that choose otherwise, with ``part`` and ``format``."""
    rows = flips(table)
    named = rows["view"].str.split(" ", n=1)
    return rows.assign(part=named.str[0], format=named.str[1])


def sentences(table: pd.DataFrame) -> list[str]:
    """Return a sentence per format: means over layers and checkpoints."""
    rows = by_part(table)
    means = rows.groupby(["format", "part"], sort=False)["value"].mean()
    said = []
    for name in [one for one in FORMATS if one in set(rows["format"])]:
        alone = means[name].drop(WHOLE, errors="ignore").sort_values(ascending=False, kind="stable")
        parts = ", ".join(f"{part} {_share(value)}" for part, value in alone.items())
        whole = f"; all of it {_share(means[name][WHOLE])}" if WHOLE in means[name] else ""
        said.append(f"{name}, tokens that choose other experts where one part is rounded: {parts}{whole}.")
    return said


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"
