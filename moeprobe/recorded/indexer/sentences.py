"""What a table of ``indexer`` says in words."""

from typing import Any

import pandas as pd

from moeprobe.inputs.modality import REQUEST
from moeprobe.judging.selection import Extreme
from moeprobe.metrics.analyses.indexer import ATTENTION_LOST, KEY_JACCARD, KEYS_LOST
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.token_kinds import POSITION
from moeprobe.results.numbers import interval, number

KEY_KAPPA = f"{KEY_JACCARD.name}{KAPPA}"


def rows_of(table: pd.DataFrame, metric: str, null: str = "") -> pd.DataFrame:
    """Return the rows of a number."""
    return table[(table["metric"] == metric) & (table["null"].fillna("") == null)]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return how far the captures agree over all layers, and in which layer least."""
    overall = table[(table["layer"] == "") & (table["tokens"] == REQUEST.token)]

    def records(name: str, null: str = "") -> list[dict[Any, Any]]:
        return rows_of(overall, name, null).to_dict("records")

    if not (kappas := records(KEY_KAPPA, "random")):
        return []
    kappa = kappas[0]
    jaccard, lost = (records(metric.name)[0] for metric in (KEY_JACCARD, KEYS_LOST))
    chance, lost_chance = (
        records(f"{metric.name}{CHANCE}", "random")[0]["value"] for metric in (KEY_JACCARD, KEYS_LOST)
    )
    conclusions = [
        f"{kappa['checkpoint']}: κ of the selected keys is {interval(kappa)} over all layers (overlap "
        f"{interval(jaccard)}, by chance {number(chance)}). {interval(lost)} of the selected keys are lost, "
        f"by chance {number(lost_chance)}."
    ]
    if recency := records(KEY_KAPPA, "recency"):
        conclusions.append(
            f"κ is {interval(recency[0])} where chance is another request's selection at the same position, which "
            "knows only how far back keys are."
        )
    if attention := records(ATTENTION_LOST.name):
        conclusions.append(f"The lost keys had {interval(attention[0])} of the attention.")
    return conclusions + _least_layer(table)


def _least_layer(table: pd.DataFrame) -> list[str]:
    """Return a sentence on the layer that agrees least, where layers differ."""
    kappas = rows_of(table, KEY_KAPPA, "random")
    by_layer = kappas[(kappas["layer"] != "") & (kappas["tokens"] == REQUEST.token) & kappas["value"].notna()]
    if by_layer["value"].nunique() <= 1:
        return []
    # It was picked for its value, so those that are not separated from it are named with it.
    least = Extreme.of(by_layer, lowest=True)
    return [
        f"{least.row['layer']} agrees least of {len(by_layer)} layers: κ {interval(least.row)}{least.appended()}."
    ]


def by_position(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of κ of all layers together by position, each with its first position ``start``."""
    kappas = rows_of(table, KEY_KAPPA, "random")
    kappas = kappas[(kappas["layer"] == "") & kappas["tokens"].str.startswith(POSITION)]
    starts = [int(tokens.split()[1].split("-")[0]) for tokens in kappas["tokens"]]
    return kappas.assign(start=starts).sort_values("start")
