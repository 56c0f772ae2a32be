"""What the numbers of ``routes`` come to, in words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeprobe.metrics.color_bias import SAME_COLOR, SAME_PLACE
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.key_routes import DISTINCT, LARGEST, SUPERCLASSES
from moeprobe.results.numbers import interval, number

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = Mapping[str, Mapping[str, Any]]
_KINDS = ("class", "position", "color")


def sentences(table: "DataFrame") -> list[str]:
    """Return what the experts of each layer say most about, and how many key routes the classes have."""
    whole = table[~table["tokens"].isin(["prefix"])]
    found = []
    for checkpoint in dict.fromkeys(whole["checkpoint"]):
        own = whole[whole["checkpoint"] == checkpoint]
        for layer in dict.fromkeys(own["layer"]):
            rows = {row["metric"]: row for row in own[own["layer"] == layer].to_dict("records")}
            found += _boards(checkpoint, layer, rows) + _information(checkpoint, layer, rows)
            found += _routes(checkpoint, rows)
    return found


def _boards(checkpoint: str, layer: str, rows: Rows) -> list[str]:
    if SAME_COLOR.name not in rows:
        return []
    parts = []
    for metric in (SAME_COLOR, SAME_PLACE):
        value, kappa = rows[metric.name], rows[f"{metric.name}{KAPPA}"]
        parts.append(f"{interval(value)} (κ {interval(kappa)})")
    return [
        f"{checkpoint}, {layer}: of two patches of one color {parts[0]} have the same expert, and of the places "
        f"{parts[1]} keep theirs when the colors are exchanged."
    ]


def _information(checkpoint: str, layer: str, rows: Rows) -> list[str]:
    known = [(kind, rows[f"{kind}_information"]) for kind in _KINDS if f"{kind}_information" in rows]
    known = [(kind, row) for kind, row in known if row["value"] == row["value"]]
    if len(known) < 2:
        return []
    known.sort(key=lambda item: -item[1]["value"])
    said = [f"{kind} {interval(row)}" for kind, row in known]
    nothing = [kind for kind, row in known if row["ci_low"] <= 0]
    end = f"; on {' and '.join(nothing)}, no more than chance" if nothing else ""
    return [
        f"{checkpoint}, {layer}: a token's expert says most about {said[0]}, then {', '.join(said[1:])}{end}."
    ]


def _routes(checkpoint: str, rows: Rows) -> list[str]:
    if DISTINCT[0].name not in rows:
        return []
    parts = []
    for metrics in (DISTINCT, LARGEST):
        value, permuted, share = (rows[metric.name] for metric in metrics)
        by_chance = f"{number(permuted['value'], decimals=1)}, 95 % between {permuted['ci_low']:.0f} and "
        by_chance += f"{permuted['ci_high']:.0f}"
        parts.append((round(value["value"]), by_chance, number(share["value"])))
    (distinct, by_chance, p), (largest, also, q) = parts
    classes = round(rows[DISTINCT[0].name]["trials"])
    return [
        f"{checkpoint}: the {classes} classes have {distinct} different key routes (with permuted labels {by_chance}; "
        f"p {p}), and {largest} of them {'has' if largest == 1 else 'share'} the most common one ({also}; p {q}).",
        *_superclasses(checkpoint, rows),
    ]


def _superclasses(checkpoint: str, rows: Rows) -> list[str]:
    if SUPERCLASSES[0].name not in rows:
        return []
    value, permuted, p = (rows[metric.name] for metric in SUPERCLASSES)
    return [
        f"{checkpoint}: key routes follow the superclasses by an adjusted mutual information of "
        f"{number(value['value'])} (with superclasses permuted over the classes 95 % between "
        f"{number(permuted['ci_low'])} and {number(permuted['ci_high'])}; p {number(p['value'])})."
    ]
