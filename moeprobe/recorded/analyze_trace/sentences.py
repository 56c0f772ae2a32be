"""What two routings of the same sequences have in common, in words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeprobe.inputs.modality import TEXT, TOKEN_KINDS, tokens_of_kind
from moeprobe.judging.selection import Extreme
from moeprobe.metrics import token_kinds
from moeprobe.metrics.analyses import touched
from moeprobe.metrics.analyses.first_layer import FIRST_LAYER_SHARE
from moeprobe.metrics.analyses.set_match import SET_JACCARD
from moeprobe.metrics.declaration import KAPPA
from moeprobe.results.numbers import interval, number

if TYPE_CHECKING:
    from pandas import DataFrame

# κ up to which two routings have hardly more in common than two models.
_MODELS_DIFFER = 0.1

Row = Mapping[str, Any]


def sentences(table: "DataFrame") -> list[str]:
    """Return for each trace how much of it differs, how many tokens are affected, and where it begins."""
    across = table[table["metric"].isin([metric.name for metric in touched.Touched.measures])]
    lines = []
    for name in dict.fromkeys(across["checkpoint"]):
        checkpoint_rows = across[across["checkpoint"] == name]
        rows = {(row["metric"], row["tokens"]): row for row in checkpoint_rows.to_dict("records")}
        of_checkpoint = table[table["checkpoint"] == name]
        lines.append(
            _of(name, rows) + _parts(rows) + _begins(of_checkpoint, rows) + _by_chance(of_checkpoint)
        )
    return lines


def _of(name: str, rows: Mapping[tuple[str, str], Row]) -> str:
    pairs, affected, independent = (
        rows[metric.name, TEXT.token]
        for metric in (touched.PAIRS_DIFFER, touched.TOKENS_TOUCHED, touched.INDEPENDENT)
    )
    return (
        f"{name}: the experts differ in {interval(pairs)} of the pairs of token and layer; {interval(affected)} of the "
        f"tokens are affected in at least one layer, where layers that differ independently would affect "
        f"{number(independent['value'])}."
    )


def _parts(rows: Mapping[tuple[str, str], Row]) -> str:
    parts = [
        (kind, rows[touched.PAIRS_DIFFER.name, kind])
        for kind in (*token_kinds.PARTS, *TOKEN_KINDS)
        if (touched.PAIRS_DIFFER.name, kind) in rows
    ]
    parts = [(kind, row) for kind, row in parts if row["trials"] > 0]
    if not parts:
        return ""
    return (
        " The share of such pairs is "
        + ", ".join(f"{interval(row)} for {tokens_of_kind(kind)}" for kind, row in parts)
        + "."
    )


def _by_chance(table: "DataFrame") -> str:
    """Return a warning where no layer agrees better than by chance."""
    kappa = table[
        (table["metric"] == f"{SET_JACCARD.name}{KAPPA}")
        & (table["null"] == "pooled")
        & (table["tokens"] == TEXT.token)
    ]["value"].dropna()
    if kappa.empty or kappa.max() > _MODELS_DIFFER:
        return ""
    return (
        f" No layer agrees better than by chance (κ up to {number(kappa.max())}): these are two models, or other "
        "inputs of the same names."
    )


def _begins(table: "DataFrame", rows: Mapping[tuple[str, str], Row]) -> str:
    first = table[(table["metric"] == FIRST_LAYER_SHARE.name) & (table["tokens"] == TEXT.token)]
    position = rows[touched.FIRST_POSITION.name, TEXT.token]
    if first["value"].isna().all() or not position["trials"]:
        return ""
    selection = Extreme.of(first, lowest=False)
    quantity, compared = selection.share_words
    return (
        f" {quantity} affected tokens differ first in {selection.row['layer']} "
        f"({interval(selection.row)}{selection.beside()}){compared}; "
        f"sequences first differ at position {interval(position)}, on average."
    )
