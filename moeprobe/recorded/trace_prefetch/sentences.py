"""What a table of ``trace prefetch`` says in words."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.judging.selection import ends_of
from moeprobe.metrics.analyses.prefetch import PREDICTORS, PREFETCH
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.probes.router_prefetch.sentences import loaded_words, place_of
from moeprobe.results.numbers import interval, number

_KNOWN = {"layer": "the layer before", "token": "the previous token", "both": "both"}


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each recording how many choices are found ahead, over all layers, and where the layer before helps."""
    return [
        sentence
        for name in dict.fromkeys(table["checkpoint"])
        for sentence in _of_recording(
            table[(table["checkpoint"] == name) & table["tokens"].isin(ORDINARY)], str(name)
        )
    ]


def _of_recording(table: pd.DataFrame, name: str) -> list[str]:
    rows, in_layer = place_of(table)
    size = min(rows["severity"])
    every: dict[tuple[str, str], Mapping[Any, Any]] = {
        (row["metric"], row["null"]): row for row in rows[rows["severity"] == size].to_dict("records")
    }
    parts = []
    for predictor in PREDICTORS:
        row = every.get((PREFETCH.make(predictor).name, ""))
        if row is not None:
            parts.append(f"{interval(row)} from {_KNOWN[predictor]}")
    levels = [every.get((f"{PREFETCH.make('token').name}{CHANCE}", null)) for null in ("busiest", "even")]
    values = [number(level["value"]) for level in levels if level is not None]
    if not parts or len(values) < len(levels):
        return []
    return [
        f"{name}: with {loaded_words(size)} per layer loaded ahead{in_layer}, the share of the choices found is "
        f"{', '.join(parts)} (busiest experts of other requests {values[0]}, even router {values[1]})."
        f"{'' if in_layer else _without_layer_before(table)}",
        *_ends(table, name, size),
    ]


def _without_layer_before(table: pd.DataFrame) -> str:
    """Return which layers the numbers over all layers leave out, since no layer is before them; empty of none."""
    of_token, of_layer = (
        dict.fromkeys(table.loc[table["metric"] == PREFETCH.make(predictor).name, "layer"])
        for predictor in ("token", "layer")
    )
    names = [name for name in of_token if name not in of_layer]
    if not names or not of_layer:
        return ""
    verb, pronoun = ("has", "it") if len(names) == 1 else ("have", "them")
    return f" {' and '.join(names)} {verb} no layer before {pronoun}, and no part in these numbers."


def _ends(table: pd.DataFrame, name: str, size: float) -> list[str]:
    """Return in which layers the layer before says least and most, beyond the busiest experts."""
    keep = (table["metric"] == f"{PREFETCH.make('layer').name}{KAPPA}") & (table["null"] == "busiest")
    kappas = table[keep & (table["severity"] == size) & (table["layer"] != "") & table["value"].notna()]
    if len(kappas) < 2:
        return []
    spread = ends_of(kappas)
    return [f"{name}: beyond the busiest experts, the layer before predicts the next one with κ {spread}."]
