"""What a table of ``regret`` says in words."""

from collections.abc import Iterator

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.judging.selection import ends_of, widen_intervals
from moeprobe.metrics.analyses.choices import RANK, REGRET, REGRET_RANDOM, RIGHT
from moeprobe.metrics.declaration import CHANCE, KAPPA, Metric
from moeprobe.results.numbers import interval, number


def rows_of(table: pd.DataFrame, metric: Metric, suffix: str = "") -> pd.DataFrame:
    """Return the rows of a metric, or of its chance level or κ, that have a value."""
    return table[(table["metric"] == f"{metric.name}{suffix}") & table["value"].notna()]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return, for each checkpoint and kind of tokens, whether choices are better than random, and the regret."""
    return [
        sentence
        for (name, tokens), rows in table.groupby(["checkpoint", "tokens"], sort=False)
        for sentence in _of_tokens(rows, f"{name}{'' if tokens in ORDINARY else f', {tokens} tokens'}")
    ]


def _of_tokens(table: pd.DataFrame, name: str) -> Iterator[str]:
    kappas = rows_of(table, RANK, KAPPA)
    if kappas.empty:
        rights = table[table["metric"] == RIGHT.name]
        if len(rights):
            yield f"{name}: no tried choice of experts moves the loss, so none is right or wrong."
        return
    yield (
        f"{name}: by the rank of the router's choice among the tried ones, κ against a random choice is "
        f"{ends_of(kappas)}; {_words(kappas)}."
    )
    layer = kappas["layer"].iloc[0]
    of_layer = table[table["layer"] == layer]
    right, chance, regret, random = (
        rows_of(of_layer, metric, suffix).iloc[0]
        for metric, suffix in ((RIGHT, ""), (RIGHT, CHANCE), (REGRET, ""), (REGRET_RANDOM, ""))
    )
    yield (
        f"{name}: in {layer}, no tried choice is better by more than the limit (--delta) for {interval(right)} of the "
        f"tokens (of a random option, {number(chance['value'])}). The regret is {interval(regret)} nats (of a random "
        f"option, {number(random['value'])}). The best option is picked with the losses in sight, so no router avoids "
        "all regret."
    )


def _words(kappas: pd.DataFrame) -> str:
    """Return in how many layers the choice is better or worse than a random one, for all layers at once."""
    together = widen_intervals(kappas)
    counts = {
        "better than a random one": int((together["ci_low"] > 0).sum()),
        "worse than a random one": int((together["ci_high"] < 0).sum()),
    }
    total = len(together)
    layers = "layer" if total == 1 else "layers"
    parts = [f"{words} in {count} of {total} {layers}" for words, count in counts.items() if count]
    if not parts:
        return "in no layer is it separated from a random one"
    at_once = ", with intervals that hold for all layers at once" if total > 1 else ""
    return f"it is {' and '.join(parts)}{at_once}"
