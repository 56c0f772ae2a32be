"""The numbers of the PRC paper's tables, and their companions, of one pair of checkpoints.

A pair is a reference and a compared checkpoint, from trainings with one seed. Every number is given for every MoE
layer, the first one first: what the paper calls the sixth is the first of its two, and where the head reads the class
token alone the routing of patches in the last block cannot reach the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from moeprobe.inputs.geometry import REGIONS
from moeprobe.inputs.modality import IMAGE
from moeprobe.metrics.analyses.load import DEAD_EXPERTS as DEAD
from moeprobe.metrics.analyses.load import DEAD_EXPERTS_FIRST, EXPERT_SHARE, EXPERT_SHARE_FIRST, dead_limit
from moeprobe.results.folder import Result

# The noise of the numbers called "noise".
SIGMA = 0.2
DEAD_EXPERTS, NEVER_FIRST = "dead experts", "dead as first choice"
EVALUATION = "evaluation"
# Whose shares the table of the load has: where K = 1 the first choices are all.
CHOICES = {"all": EXPERT_SHARE, "first": EXPERT_SHARE_FIRST}


@dataclass(frozen=True)
class Number:
    """One number: what it is called, of which probe it is, and which rows of that probe's tables hold it."""

    name: str
    probe: str
    metric: str
    null: str = ""
    tokens: str = IMAGE.token


def _matches(view: str) -> Iterator[Number]:
    yield Number(f"{view}: top-1 match", view, "top1_match")
    yield Number(f"{view}: top-2 match", view, "top2_match")
    yield Number(f"{view}: top-2 match, any order", view, "top2_set_match")
    yield Number(f"{view}: κ", view, "top1_match_kappa", "pooled")
    yield Number(f"{view}: κ within image", view, "top1_match_kappa", "image")


NUMBERS = (
    *_matches("random_crop"),
    *_matches("prc_crops"),
    Number("noise: top-1 match", "noise", "top1_match"),
    Number("noise: κ", "noise", "top1_match_kappa", "pooled"),
    Number("highest gate", "confidence", "gate_highest"),
    Number("second gate", "confidence", "gate_second"),
    Number("sum of the rest", "confidence", "gate_rest"),
    Number("entropy of the gates", "confidence", "gate_entropy"),
    Number("load entropy", "confidence", "load_entropy"),
    Number(DEAD_EXPERTS, "confidence", DEAD.name),
    Number(NEVER_FIRST, "confidence", DEAD_EXPERTS_FIRST.name),
    Number("accuracy", EVALUATION, "accuracy", tokens=""),
)
# By what the patches show, where the data have masks.
REGION_NUMBERS = tuple(
    Number(f"{probe}: {name}, {region}", probe, metric, null, region)
    for probe in ("random_crop", "noise")
    for name, metric, null in (("top-1 match", "top1_match", ""), ("κ", "top1_match_kappa", "pooled"))
    for region in reversed(REGIONS)
)


def number_rows(
    results: Mapping[str, Result], names: Mapping[str, str], *, top_k: int | None, seed: int | None
) -> list[dict[str, object]]:
    """Return the numbers of one pair: both values and the difference, for every MoE layer.

    Args:
        results: results of the probes, by the names that ``NUMBERS`` uses; one that is missing has no rows.
        names: what the tables call each of the two checkpoints, by its own name; the reference first.
        top_k: experts per token of the pair.
        seed: seed of the two trainings.
    """
    rows: list[dict[str, object]] = []
    for number in (*NUMBERS, *REGION_NUMBERS):
        result = results.get(number.probe)
        if result is None:
            continue
        assert result.comparison is not None
        for table, kind in ((result.table, "value"), (result.comparison, "difference")):
            selected = _select(table, number)
            for layer in dict.fromkeys(selected["layer"]):
                of_layer = selected[selected["layer"] == layer].set_index("checkpoint")
                rows += [
                    {"top_k": top_k, "seed": seed, "layer": layer, "number": number.name, "kind": kind}
                    | {"model": called}
                    | of_layer.loc[name, ["value", "ci_low", "ci_high", "images", "trials"]].to_dict()
                    for name, called in names.items()
                    if name in of_layer.index
                ]
    return rows


def _select(table: pd.DataFrame, number: Number) -> pd.DataFrame:
    keep = (
        (table["metric"] == number.metric)
        & (table["null"] == number.null)
        & (table["tokens"] == number.tokens)
    )
    if number.probe == "noise":
        keep &= (table["view"] == "gaussian_noise") & (table["severity"] == SIGMA)
    return table[keep]


def load_rows(
    confidence: Result, names: Mapping[str, str], *, top_k: int | None, seed: int | None
) -> list[dict[str, object]]:
    """Return each expert's share of the choices of patches of clean images, all and first; arguments as above."""
    table = confidence.table
    table = table[table["tokens"] == IMAGE.token]
    return [
        {"top_k": top_k, "seed": seed, "layer": layer, "model": names[row["checkpoint"]], "choices": choices}
        | {"expert": int(row["expert"]), "share": row["value"]}
        | {name: row[name] for name in ("ci_low", "ci_high", "images", "trials")}
        for choices, metric in CHOICES.items()
        for layer, rows in table[table["metric"] == metric.name].groupby("layer", sort=False)
        for row in rows.to_dict("records")
    ]


def dead(load: pd.DataFrame) -> Sequence[int]:
    """Return the dead experts of one layer of one model, by the share of each of its experts."""
    return [int(expert) for expert in load.loc[load["share"] < dead_limit(len(load)), "expert"]]
