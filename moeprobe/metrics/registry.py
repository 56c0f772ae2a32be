"""All declared metrics, and what a name of the column ``metric`` says: the only place that takes a suffix off one.

Reading declarations imports the files of the analyses, which do without torch until something is measured.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.metrics import costs, key_routes
from moeprobe.metrics.declaration import CHANCE, KAPPA, NULLS, Metric, MetricFamily
from moeprobe.runtime import catalog, plugins

Declaration = Metric | MetricFamily
Kind = Literal["raw", "chance", "kappa"]
_SUFFIXES: dict[Kind, str] = {"raw": "", "chance": CHANCE, "kappa": KAPPA}
# What declarations are read from: the catalog, and which files from outside the package it knows.
_Key = tuple[catalog.Catalog, str]


@dataclass(frozen=True)
class Form:
    """A metric as a column names it: its value, a chance level of it, or how far it is beyond chance.

    Attributes:
        metric: its declaration; of a name that nobody declares one that says nothing.
        kind: "raw", "chance" or "kappa".
        declared: whether anybody declares it.
    """

    metric: Metric
    kind: Kind = "raw"
    declared: bool = True

    @property
    def name(self) -> str:
        """What the column says."""
        return self.metric.name + _SUFFIXES[self.kind]

    @property
    def direction(self) -> int:
        """1 where more is better, −1 where less is, 0 where neither. Of κ more is, of a chance level nothing."""
        if self.kind == "raw":
            return {"more": 1, "less": -1, "": 0}[self.metric.better]
        return int(self.kind == "kappa")

    @property
    def has_margin(self) -> bool:
        """Whether a margin in shares means anything: chance levels and κ are in shares of their metric."""
        return self.kind != "raw" or self.metric.has_margin

    def label(self, null: str = "", modality: Modality = IMAGE) -> str:
        """Return the label of a line below the line of the value."""
        if self.kind == "chance":
            return "  by chance"
        if self.kind == "kappa":
            return f"  {kappa(null, modality)}"
        return f"  {self.metric.label}" if self.metric.below else self.metric.label

    def full_label(self, null: str = "", modality: Modality = IMAGE) -> str:
        """Return its label as a line of its own, e.g. ``κ of top-1 match, within image``."""
        value = Form(self.metric).label()
        if self.kind == "chance":
            of = "" if null == "pooled" else f", {modality.name if null == 'image' else null}"
            return f"chance of {value}{of}"
        if self.kind == "kappa":
            return f"κ of {value}{kappa(null, modality).removeprefix('κ')}"
        return value

    def read_first(self, null: str, *, first: str) -> bool:
        """Whether a short table shows it, given the agreement that is read first."""
        secondary = self.metric.secondary and self.metric.name != first
        if self.kind == "chance":
            return null == "pooled" and not secondary
        return self.kind == "raw" or not secondary or null in self.metric.nulls[:1]


def kappa(null: str, modality: Modality = IMAGE) -> str:
    """Return what κ by a chance level is called: by whom the level is given."""
    words = NULLS[null].kappa if null in NULLS else f"κ, {null}"
    return words.format(source=modality.name)


def find(column: str) -> Form:
    """Return the metric and the form that a name of the column ``metric`` is about."""
    return _find(_key(), column)


def declared() -> tuple[Declaration, ...]:
    """Return all declarations: grouped by analysis, leading metrics first.

    What no analysis computes comes last.
    """
    return tuple(declaration for _, measures in by_analysis() for declaration in measures)


def by_analysis() -> tuple[tuple[str, tuple[Declaration, ...]], ...]:
    """Return the declarations in that order with the analysis that computes them; "" where none does."""
    return _by_analysis(_key())


def analyses_of(column: str) -> tuple[str, ...]:
    """Return the analyses that compute the metric of a name."""
    name = find(column).metric.name
    return tuple(
        analysis
        for analysis, group in by_analysis()
        if analysis and any(covers(declaration, name) for declaration in group)
    )


def names() -> tuple[str, ...]:
    """Return the names of all metrics, families as they are written."""
    return tuple(declaration.name for declaration in declared())


@functools.lru_cache(maxsize=8)
def _by_analysis(key: _Key) -> tuple[tuple[str, tuple[Declaration, ...]], ...]:
    analyses, _ = key
    groups = [(name, tuple(analyses.get(name).measures)) for name in analyses.names()]
    return (
        *sorted(
            groups, key=lambda item: min((_example(declaration).rank for declaration in item[1]), default=100)
        ),
        ("", key_routes.measures),
        ("", costs.measures),
    )


def _key() -> _Key:
    return catalog.ANALYSES, plugins.version()


@functools.lru_cache(maxsize=4096)
def _find(key: _Key, column: str) -> Form:
    metric = _exactly(key, column)
    if metric is not None:
        return Form(metric)
    for kind, suffix in _SUFFIXES.items():
        if suffix and column.endswith(suffix):
            form = _find(key, column.removesuffix(suffix))
            if form.kind == "raw":
                return Form(form.metric, kind, form.declared and bool(form.metric.nulls))
    return Form(Metric(column, about="", unit="other"), declared=False)


def _exactly(key: _Key, name: str) -> Metric | None:
    for _, measures in _by_analysis(key):
        for declaration in measures:
            if covers(declaration, name):
                return declaration.find(name) if isinstance(declaration, MetricFamily) else declaration
    return None


def covers(declaration: Declaration, name: str) -> bool:
    """Whether a name belongs to a metric, or to one of a family."""
    return declaration.name == name if isinstance(declaration, Metric) else declaration.find(name) is not None


def _example(declaration: Declaration) -> Metric:
    return declaration.representative if isinstance(declaration, MetricFamily) else declaration
