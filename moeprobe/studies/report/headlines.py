"""The headline numbers of a run, and their place in its tables."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics import registry
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.reading_order import tokens_choose
from moeprobe.probes.base import Agreement, Headline, Which
from moeprobe.probes.registry import of_kind
from moeprobe.results.tables import agreement_of
from moeprobe.studies.report.reading import Run

Row = dict[str, Any]


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


def _headlines(run: Run, table: pd.DataFrame) -> list[Headline]:
    """Return what is read first of a run of this kind."""
    kind = of_kind(run.kind)
    declared = () if kind is None else kind.headlines
    return [_of_agreement(one, table) if isinstance(one, Agreement) else _named(one) for one in declared]


def _named(declared: Headline) -> Headline:
    """Return a headline with a noun."""
    noun = declared.noun or registry.find(declared.metric).metric.noun
    return dataclasses.replace(declared, noun=noun)


def _of_agreement(declared: Agreement, table: pd.DataFrame) -> Headline:
    """Return the headline about the first kind of agreement that all checkpoints have."""
    first = agreement_of(table)
    kappa = registry.find(f"{first}{KAPPA}")
    noun = "κ" if tokens_choose(first) else kappa.full_label("pooled")
    companions = (("raw", (first, "")), ("by chance", (f"{first}{CHANCE}", "pooled")))
    return Headline(kappa.name, "pooled", at=declared.at, companions=companions, noun=noun)


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
            every = [headline.which, *(which for _, which in headline.companions)]
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
