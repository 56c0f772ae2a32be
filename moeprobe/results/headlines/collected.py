"""The tables of a run, just measured or read back, its headline numbers, and their place in the tables."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality, modality_of
from moeprobe.metrics import registry
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import tokens_choose
from moeprobe.results.headlines.declared import Agreement, Headline, Which
from moeprobe.results.sidecars import Request, Sidecar
from moeprobe.results.tables import agreement_of, set_match_of

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """What sentences about a run are made of.

    Attributes:
        sidecar: request and provenance, as ``table.json`` holds them.
        table: the values; None where the run has none.
        comparison: the paired differences likewise.
    """

    sidecar: Sidecar
    table: pd.DataFrame | None
    comparison: pd.DataFrame | None

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.sidecar.request

    @property
    def kind(self) -> str:
        """The kind of run, e.g. ``match-ratio``."""
        return self.request.kind

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked, with what a comparison asked of its probe."""
        probe = self.request.get("probe")
        own = {name: given for name, given in self.request.items() if name not in ("probe", "checkpoints")}
        return {**probe, **own} if isinstance(probe, dict) else self.request

    @property
    def images(self) -> int | None:
        """Number of images that the values rest on; None where the run has none."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        return int(max(table["images"].max() for table in tables)) if tables else None

    @property
    def modality(self) -> Modality:
        """What the checkpoints read."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        tokens = (token for table in tables for token in table["tokens"].unique())
        return modality_of(tokens, data=self.request.data)

    @property
    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """Provenance of each checkpoint, by name."""
        return self.sidecar.checkpoints


@dataclass(frozen=True)
class HeadlineValues:
    """A headline of a run in one layer.

    Attributes:
        declared: the headline, with a noun.
        layer: empty for the output.
        severity: None where the run has none.
        rows: for each metric and null a row per checkpoint whose first layer this is.
        differences: for each metric and null a row per pair of them.
        in_layers: a row per MoE layer and checkpoint; none where one layer is all.
        differences_in_layers: a row per MoE layer and pair of them.
    """

    declared: Headline
    layer: str
    severity: float | None
    rows: dict[Which, list[Row]]
    differences: dict[Which, list[Row]]
    in_layers: list[Row] = field(default_factory=list)
    differences_in_layers: list[Row] = field(default_factory=list)

    @property
    def which(self) -> Which:
        """Metric and null of the headline itself, which ``rows`` and ``differences`` have with its companions."""
        return self.declared.which


def collect_headlines(run: RunTables, declared: Sequence[Headline | Agreement]) -> list[HeadlineValues]:
    """Return the headlines of a run, in their order; one per layer where the first layers of checkpoints differ.

    Args:
        run: its tables.
        declared: the headlines of its kind.
    """
    if run.table is None:
        return []
    collected = []
    for headline in resolve_headlines(declared, run.table, run.modality):
        table, comparison = _of_view(run.table, headline.view), _of_view(run.comparison, headline.view)
        assert table is not None
        values = select_rows(table, headline.which)
        severity = severity_of(values, headline.at)
        first_layers = values.groupby("checkpoint", sort=False)["layer"].first()
        for layer in dict.fromkeys(first_layers):
            names = set(first_layers.index[first_layers == layer])
            every = [headline.which, *(which for _, which in headline.companions)]
            rows = {which: _rows(table, which, layer, severity, names) for which in every}
            differences = {which: _rows(comparison, which, layer, severity, names) for which in every}
            in_layers, between_layers = (
                _in_layers(side, headline.which, severity, names) if layer else []
                for side in (table, comparison)
            )
            collected.append(
                HeadlineValues(headline, layer, severity, rows, differences, in_layers, between_layers)
            )
    # The weakest severity is the strongest where there is but one.
    return list({(item.which, item.layer, item.severity): item for item in collected}.values())


def resolve_headlines(
    declared: Sequence[Headline | Agreement], table: pd.DataFrame, modality: Modality
) -> list[Headline]:
    """Return the headlines with their metrics and nouns, which of agreement depend on the checkpoints."""
    return [
        headline
        for item in declared
        for headline in (
            _of_agreement(item, table, modality) if isinstance(item, Agreement) else [_with_noun(item)]
        )
    ]


def _with_noun(declared: Headline) -> Headline:
    noun = declared.noun or registry.find(declared.metric).metric.noun
    return dataclasses.replace(declared, noun=noun)


def _of_agreement(declared: Agreement, table: pd.DataFrame, modality: Modality) -> list[Headline]:
    """Return the headline about the first kind of agreement that all checkpoints have, and those about sets."""
    first = agreement_of(table)
    kappa = registry.find(f"{first}{KAPPA}")
    noun = "κ" if tokens_choose(first) else kappa.full_label("pooled")
    headlines = [_beyond_chance(first, "pooled", declared, noun)]
    sets = set_match_of(table)
    for null in ("pooled", "image") if sets else ():
        noun = registry.find(f"{sets}{KAPPA}").full_label(null, modality)
        headlines.append(dataclasses.replace(_beyond_chance(sets, null, declared, noun), beside=True))
    return headlines


def _beyond_chance(metric: str, null: str, declared: Agreement, noun: str) -> Headline:
    companions = (("raw", (metric, "")), ("by chance", (f"{metric}{CHANCE}", null)))
    return Headline(
        f"{metric}{KAPPA}",
        null,
        at=declared.at,
        companions=companions,
        severity=declared.severity,
        noun=noun,
        view=declared.view,
    )


def select_rows(table: pd.DataFrame, which: Which) -> pd.DataFrame:
    """Return the rows of ordinary tokens, or the output, about a metric and null: of draws and experts their pool."""
    keep = (table["metric"] == which[0]) & (table["null"] == which[1]) & table["tokens"].isin([*ORDINARY, ""])
    # The rows of all together have no number: missing in memory, empty in a CSV.
    for column in ("draw", "expert"):
        if column in table:
            keep &= table[column].isna() | (table[column].astype(object) == "")
    return table[keep]


def _of_view(table: pd.DataFrame | None, view: str | tuple[str, ...]) -> pd.DataFrame | None:
    """Return the rows of one view, of several the first that there is, or all where none is named."""
    if table is None or not view or "view" not in table:
        return table
    views = (view,) if isinstance(view, str) else view
    return table[table["view"] == next((name for name in views if (table["view"] == name).any()), views[0])]


def severity_of(table: pd.DataFrame, at: str) -> float | None:
    """Return the severity that a headline means; None where the run has none, NaN for the mean over them."""
    if at == "mean":
        return np.nan
    steps = table["severity"].dropna()
    if steps.empty:
        return None
    return float(steps.min() if at == "weakest" else steps.max())


def _in_layers(
    table: pd.DataFrame | None, which: Which, severity: float | None, names: set[str]
) -> list[Row]:
    """Return the rows of these checkpoints in each of several MoE layers."""
    rows = _rows(table, which, None, severity, names)
    return rows if len({row["layer"] for row in rows}) > 1 else []


def _rows(
    table: pd.DataFrame | None, which: Which, layer: str | None, severity: float | None, names: set[str]
) -> list[Row]:
    """Return the rows of these checkpoints in a layer, None = each; of a comparison those between them."""
    if table is None:
        return []
    here = select_rows(table, which)
    here = here[here["layer"] == layer] if layer is not None else here[~here["layer"].isin(("", "all"))]
    if severity is not None:
        here = here[here["severity"].isna() if np.isnan(severity) else here["severity"] == severity]
    rows: Sequence[Row] = here.to_dict("records")
    return [row for row in rows if {row["checkpoint"], row.get("reference", row["checkpoint"])} <= names]
