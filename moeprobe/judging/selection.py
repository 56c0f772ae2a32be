"""The layer, part or expert that is named as most or least of several, and those that are not separated from it.

A row that is picked for its value is extreme by chance, too. So intervals that hold for all rows at once stand behind
the name: where two of them are apart, so are the truths, with 95 % confidence for all pairs at once, however much the
same inputs move both. If all rows are equal, the named one is called separated in at most 5 % of experiments.

Sources: intervals that hold together, Šidák 1967; sets that hold the best of several, Gupta 1965.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.proportions import CONFIDENCE, critical
from moeprobe.results.numbers import interval

# Rivals that a sentence names.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Extreme:
    """The highest or lowest of several rows.

    Three layers with intervals of ± 0.02, each. For all three at once they are ± 0.025, so only the last is separated:

    >>> import pandas as pd
    >>> from moeprobe.judging.selection import Extreme
    >>> rows = pd.DataFrame({"layer": ["blocks.1", "blocks.3", "blocks.5"], "value": [0.5, 0.53, 0.6]})
    >>> rows = rows.assign(ci_low=rows["value"] - 0.02, ci_high=rows["value"] + 0.02, metric="top1_match", images=100)
    >>> Extreme.of(rows, lowest=True).clause()
    'not separated from blocks.3'

    Attributes:
        row: as in the table, with its own interval.
        rivals: names of the others that may be as extreme, the nearest first.
        following: the next row; None where there is none.
        is_judged: whether the named one has an interval, without which nothing can be said of the others.
    """

    row: pd.Series
    rivals: tuple[str, ...]
    following: pd.Series | None
    is_judged: bool

    @classmethod
    def of(
        cls,
        rows: pd.DataFrame,
        *,
        lowest: bool,
        names: Sequence[str] | None = None,
        hold_together: bool = False,
    ) -> Self:
        """Return the lowest or the highest of some rows.

        Args:
            rows: of one number of one model, with a value at least.
            lowest: which end is named.
            names: of the rows; None = their layers.
            hold_together: whether their intervals hold for all of them at once.
        """
        labels = pd.Series(list(rows["layer"] if names is None else names), index=rows.index)
        together = rows[rows["value"].notna()]
        together = together if hold_together else widen_intervals(together)
        ordered = together.sort_values("value", ascending=lowest, kind="stable")
        first, remaining = ordered.iloc[0], ordered.iloc[1:]
        is_apart = (
            remaining["ci_low"] > first["ci_high"] if lowest else remaining["ci_high"] < first["ci_low"]
        )
        # Without an interval nothing separates a row, so it is a rival.
        rivals = tuple(str(labels[at]) for at in remaining.index[~is_apart])
        is_judged = bool(first["ci_low"] == first["ci_low"])
        following = rows.loc[remaining.index[0]] if len(remaining) else None
        return cls(rows.loc[first.name], rivals if is_judged else (), following, is_judged)

    @property
    def is_separated(self) -> bool:
        """Whether it is apart from all others."""
        return self.is_judged and self.following is not None and not self.rivals

    @property
    def share_words(self) -> tuple[str, str]:
        """How a sentence on the largest of several shares begins and ends: it may be less than one half."""
        return ("Most", "") if self.row["value"] > 0.5 else ("More", " than in any other layer")

    def clause(self) -> str:
        """Return what is known of the others: those that are not separated from it, or that none is; empty for one."""
        if self.following is None or not self.is_judged:
            return ""
        return f"not separated from {self.rivals_text}" if self.rivals else "separated from all others"

    @property
    def rivals_text(self) -> str:
        """The rivals in words, at most three by name."""
        unnamed = len(self.rivals) - _MOST_NAMED
        return f"{', '.join(self.rivals[:_MOST_NAMED])}{f' and {unnamed} more' if unnamed > 0 else ''}"

    def appended(self) -> str:
        """Return the clause behind a comma; empty where nothing is known."""
        return f", {clause}" if (clause := self.clause()) else ""

    def inserted(self) -> str:
        """Return the clause in brackets, for the middle of a sentence; empty where nothing is known."""
        return f" ({clause})" if (clause := self.clause()) else ""

    def beside(self) -> str:
        """Return the clause behind a semicolon; empty where nothing is known."""
        return f"; {clause}" if (clause := self.clause()) else ""


def widen_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one model with intervals that hold for all of them at once (Šidák 1967)."""
    has_interval = rows["ci_low"].notna()
    numbers = int(has_interval.sum())
    # A single number needs no correction.
    if numbers < 2:
        return rows
    # Šidák: n intervals at this confidence hold together at 95 %.
    confidence = CONFIDENCE ** (1 / numbers)
    factors = np.array(
        [critical(int(n), confidence=confidence) / critical(int(n)) if n > 1 else 1.0 for n in rows["images"]]
    )
    value, low, high = (rows[name].to_numpy(float) for name in ("value", "ci_low", "ci_high"))
    # Scaled about the value, so that skewed intervals stay skewed.
    low, high = value - factors * (value - low), value + factors * (high - value)
    # An interval of a share must not leave [0, 1].
    lowest, highest = _range_of(str(rows["metric"].iloc[0]))
    return rows.assign(ci_low=np.clip(low, lowest, None), ci_high=np.clip(high, None, highest))


def _range_of(metric: str) -> tuple[float, float]:
    """Return the lowest and the highest value that a number can have."""
    form = find(metric)
    if form.kind == "kappa":
        return -np.inf, 1.0
    return (0.0, 1.0) if form.metric.unit in ("share", "probability") else (-np.inf, np.inf)


def extremes_of(rows: pd.DataFrame) -> list[Extreme]:
    """Return the lowest and the highest row; the highest alone where both are of the same layer.

    Args:
        rows: of a table, one for each layer.
    """
    lowest, highest = (Extreme.of(rows, lowest=is_lowest) for is_lowest in (True, False))
    return [highest] if lowest.row["layer"] == highest.row["layer"] else [lowest, highest]


def ends_of(rows: pd.DataFrame) -> str:
    """Return the lowest and the highest value, each with its layer and those not separated from it; one if all are.

    Args:
        rows: of a table, one for each layer.
    """
    return " to ".join(f"{interval(end.row)} ({end.row['layer']}{end.beside()})" for end in extremes_of(rows))
