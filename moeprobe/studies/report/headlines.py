"""Which numbers of a run are read first, and where they stand in its tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from moeprobe.inputs.medium import ORDINARY
from moeprobe.metrics import registry
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.reading_order import tokens_choose
from moeprobe.results.tables import agreement_of
from moeprobe.studies.report.reading import Run

Row = dict[str, Any]
Which = tuple[str, str]  # metric, null


@dataclass(frozen=True)
class Headline:
    """A number of the first MoE layer, or of the output.

    The first, since the routing of patches there reaches the answer: where the head reads the class token alone, that
    of the last block does not.

    Attributes:
        noun: what it is called in the middle of a sentence.
        which: metric and null.
        at: which severity is meant where a run has several.
        beside: numbers without which it is not understood: noun -> metric and null.
        told: how a severity is told.
    """

    noun: str
    which: Which
    at: str = "only"
    beside: tuple[tuple[str, Which], ...] = ()
    told: str = "at severity {severity:g}, the {at} of the run"


@dataclass(frozen=True)
class Found:
    """A headline of a run in one layer.

    Attributes:
        layer: empty for the output.
        severity: None where the run has none.
        rows: for each metric and null a row per checkpoint whose first layer this is.
        differences: for each metric and null a row per pair of them.
    """

    headline: Headline
    layer: str
    severity: float | None
    rows: dict[Which, list[Row]]
    differences: dict[Which, list[Row]]


# Kinds whose first headline is the agreement beyond chance, and which severity it is about.
_AGREEMENT_AT = {"match-ratio": "only", "sweep": "strongest", "analyze-trace": "strongest"}
_OF_KIND: dict[str, tuple[Headline, ...]] = {
    "confidence": (
        Headline("highest gate", ("gate_highest", "")),
        Headline("load entropy", ("load_entropy", "")),
    ),
    "sweep": (
        Headline("accuracy", ("accuracy", ""), at="weakest"),
        Headline("accuracy", ("accuracy", ""), at="strongest"),
        *(
            Headline(
                f"change of class probability due to {cause}",
                (f"class_probability_{share}", ""),
                at="strongest",
            )
            for share, cause in (("features", "features"), ("switching", "switching experts"))
        ),
    ),
    "s-matrix": (Headline("mean diagonal of S", ("s_diagonal", "")),),
    "discontinuity": (
        Headline("sum of the jumps per image", ("jump_sum", "")),
        Headline("number of switches per image", ("switches", "")),
    ),
    "eval": (Headline("accuracy", ("accuracy", "")),),
    "fewshot": (
        Headline(
            "few-shot accuracy",
            ("fewshot_accuracy", ""),
            at="strongest",
            beside=(("by chance", ("fewshot_accuracy_chance", "pooled")),),
            told="with {severity:g} shots, the most of the run",
        ),
    ),
    "contagion": tuple(
        Headline(f"{noun} {when}", (f"{kind}_contagion{suffix}", ""))
        for kind, when in (
            ("batch", "when batch-mates are exchanged"),
            ("token", "when other tokens at the router are exchanged"),
            ("attention", "when other patches are exchanged"),
        )
        for suffix, noun in (
            ("", "share of tokens that change experts"),
            ("_distance", "distance of the weights"),
        )
    ),
}


def _headlines(run: Run, table: pd.DataFrame) -> list[Headline]:
    """Return what is read first of a run of this kind."""
    found = list(_OF_KIND.get(run.kind, ()))
    if run.kind in _AGREEMENT_AT:
        first = agreement_of(table)
        kappa = (f"{first}{KAPPA}", "pooled")
        noun = "κ" if tokens_choose(first) else registry.find(kappa[0]).full_label("pooled")
        beside = (("raw", (first, "")), ("by chance", (f"{first}{CHANCE}", "pooled")))
        found.insert(0, Headline(noun, kappa, at=_AGREEMENT_AT[run.kind], beside=beside))
    return found


def find(run: Run) -> list[Found]:
    """Return the headlines of a run, in their order; one per layer where the first layers of checkpoints differ."""
    if run.table is None:
        return []
    found = []
    for headline in _headlines(run, run.table):
        here = _select(run.table, headline.which)
        severity = _severity(here, headline.at)
        first = here.groupby("checkpoint", sort=False)["layer"].first()
        for layer in dict.fromkeys(first):
            names = set(first.index[first == layer])
            every = [headline.which, *(which for _, which in headline.beside)]
            rows = {which: _rows(run.table, which, layer, severity, names) for which in every}
            differences = {which: _rows(run.comparison, which, layer, severity, names) for which in every}
            found.append(Found(headline, layer, severity, rows, differences))
    # The weakest severity is the strongest where there is but one.
    return list({(item.headline.which, item.layer, item.severity): item for item in found}.values())


def _select(table: pd.DataFrame, which: Which) -> pd.DataFrame:
    keep = (table["metric"] == which[0]) & (table["null"] == which[1]) & table["tokens"].isin([*ORDINARY, ""])
    return table[keep & (table["draw"] == "")] if "draw" in table else table[keep]


def _severity(table: pd.DataFrame, at: str) -> float | None:
    """Return the severity that is meant; None where the run has none."""
    steps = table["severity"].dropna()
    if steps.empty:
        return None
    return float(steps.min() if at == "weakest" else steps.max())


def _rows(
    table: pd.DataFrame | None, which: Which, layer: str, severity: float | None, names: set[str]
) -> list[Row]:
    """Return the rows of these checkpoints; of a comparison those between them."""
    if table is None:
        return []
    here = _select(table, which)
    here = here[here["layer"] == layer]
    if severity is not None:
        here = here[here["severity"] == severity]
    rows: Sequence[Row] = here.to_dict("records")
    return [row for row in rows if {row["checkpoint"], row.get("reference", row["checkpoint"])} <= names]
