"""What a table of ``regret`` says in words."""

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.judging.selection import ends_of, widen_intervals
from moeprobe.metrics.analyses.choices import RANK, REGRET, REGRET_RANDOM, RIGHT
from moeprobe.metrics.declaration import CHANCE, KAPPA, Metric
from moeprobe.results.numbers import interval, number

# What all lines share.
_HOW_TO_READ = (
    "κ compares the rank of the router's choice among the tried ones with that of a random choice. Layers are counted "
    "with intervals that hold for all of them at once. A tried choice is better than the router's where it lowers the "
    "loss by more than the limit (--delta). The best option is picked with the losses in sight, so no router avoids "
    "all regret."
)


def rows_of(table: pd.DataFrame, metric: Metric, suffix: str = "") -> pd.DataFrame:
    """Return the rows of a metric, or of its chance level or κ, that have a value."""
    return table[(table["metric"] == f"{metric.name}{suffix}") & table["value"].notna()]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return how to read the numbers, then a line for each checkpoint and kind of tokens.

    A line says whether choices are better than random ones, and what the regret is.
    """
    rows_by_name = [
        (f"{name}{'' if tokens in ORDINARY else f', {tokens} tokens'}", rows)
        for (name, tokens), rows in table.groupby(["checkpoint", "tokens"], sort=False)
    ]
    lines = [f"{name}: {numbers}" for name, rows in rows_by_name if (numbers := _of_tokens(rows))]
    return lines if rows_of(table, RANK, KAPPA).empty else [_HOW_TO_READ, *lines]


def _of_tokens(table: pd.DataFrame) -> str:
    """Return what the numbers of one kind of tokens say; empty where there are none."""
    kappas = rows_of(table, RANK, KAPPA)
    if kappas.empty:
        has_choices = (table["metric"] == RIGHT.name).any()
        return "no tried choice of experts moves the loss, so none is right or wrong." if has_choices else ""
    layer = kappas["layer"].iloc[0]
    of_layer = table[table["layer"] == layer]
    right, chance, regret, random = (
        rows_of(of_layer, metric, suffix).iloc[0]
        for metric, suffix in ((RIGHT, ""), (RIGHT, CHANCE), (REGRET, ""), (REGRET_RANDOM, ""))
    )
    return (
        f"κ is {ends_of(kappas)}; {_words(kappas)}. In {layer}, no tried choice is better "
        f"for {interval(right)} of the tokens (random option: {number(chance['value'])}), and the regret is "
        f"{interval(regret)} nats (random option: {number(random['value'])})."
    )


def _words(kappas: pd.DataFrame) -> str:
    """Return in how many layers the choice is better or worse than a random one, for all layers at once."""
    together = widen_intervals(kappas)
    if together["ci_low"].isna().all():
        return "without an interval, nothing says whether the router's choice is better than a random one"
    counts = {
        "better than a random one": int((together["ci_low"] > 0).sum()),
        "worse than a random one": int((together["ci_high"] < 0).sum()),
    }
    total = len(together)
    layers = "layer" if total == 1 else "layers"
    parts = [f"{words} in {count} of {total} {layers}" for words, count in counts.items() if count]
    if not parts:
        return "in no layer is the router's choice separated from a random one"
    return f"the router's choice is {' and '.join(parts)}"
