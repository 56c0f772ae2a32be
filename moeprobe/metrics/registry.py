"""All declared metrics, and what a name of the column ``metric`` says: the only place that takes a suffix off one.

What is read first, of a run, of a comparison and along a severity, follows from what metrics declare.
Reading declarations imports the files of the analyses, which do without torch until something is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from moeprobe.declarations.registry import kinds, measured_by
from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.metrics import (
    alignment,
    corruption_error,
    costs,
    drifted_layers,
    key_routes,
    load_course,
    one_kind,
    relabeled_ranks,
    watched_load,
)
from moeprobe.metrics.analyses.match import TOP_K, TOP_K_SET
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.declaration import CHANCE, KAPPA, NULLS, Metric, MetricFamily
from moeprobe.runtime import catalog, plugins

if TYPE_CHECKING:
    from moeprobe.routing.record import LayerPair


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
        """1 where more is better, −1 where less is, 0 where neither. For κ more is, for a chance level neither."""
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
        # The label of the plain value, without the indent of a line below another.
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
            # One chance level is enough in a short table.
            return null == "pooled" and not secondary
        return self.kind == "raw" or not secondary or null in self.metric.nulls[:1]


def kappa(null: str, modality: Modality = IMAGE) -> str:
    """Return what κ by a chance level is called: by whom the level is given."""
    words = NULLS[null].kappa if null in NULLS else f"κ, {null}"
    return words.format(source=modality.name)


def find(column: str) -> Form:
    """Return the metric and the form that a name of the column ``metric`` is about."""
    return _find(_key(), column)


def all_declarations() -> tuple[Declaration, ...]:
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
    return tuple(declaration.name for declaration in all_declarations())


@functools.lru_cache(maxsize=8)
def _by_analysis(key: _Key) -> tuple[tuple[str, tuple[Declaration, ...]], ...]:
    analyses, _ = key
    groups = [(name, tuple(analyses.get(name).measures)) for name in analyses.names()]
    return (
        *sorted(
            # The best rank of a group places the whole group.
            groups,
            key=lambda item: min((_example(declaration).rank for declaration in item[1]), default=100),
        ),
        # Measured by no analysis of sums: these come from runs as a whole.
        ("", alignment.measures),
        ("", key_routes.measures),
        ("", one_kind.measures),
        ("", relabeled_ranks.measures),
        ("", drifted_layers.measures),
        ("", load_course.measures),
        ("", watched_load.measures),
        ("", corruption_error.measures),
        ("", costs.measures),
    )


def _key() -> _Key:
    return catalog.ANALYSES, plugins.version()


@functools.lru_cache(maxsize=4096)
def _find(key: _Key, column: str) -> Form:
    # An exact name first: a metric may itself end like a suffix.
    metric = _exactly(key, column)
    if metric is not None:
        return Form(metric)
    for kind, suffix in _SUFFIXES.items():
        if suffix and column.endswith(suffix):
            form = _find(key, column.removesuffix(suffix))
            if form.kind == "raw":
                # A metric without null models has no chance level, whatever the column is called.
                return Form(form.metric, kind, form.declared and bool(form.metric.nulls))
    # A column of a newer version or of a missing plug-in still gets a label.
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


def applicable(pair: LayerPair) -> list[Declaration]:
    """Return the metrics and families that say anything of a layer like this, in the registry's order."""
    metrics = []
    for name, measures in by_analysis():
        analysis = catalog.ANALYSES.get(name)() if name else None
        if not isinstance(analysis, LayerAnalysis) or not analysis.applies(pair.view):
            continue
        computed = {
            estimator.name
            for columns in analysis.sums(pair).values()
            for estimator in analysis.estimators(
                {key: column.numpy() for key, column in columns.items()}
                # Labels only so that analyses of classes have two.
                | {"label": np.arange(len(pair.view.gates)) % 2},
                aligned=pair.aligned,
            )
        }
        metrics += [
            declaration for declaration in measures if any(covers(declaration, column) for column in computed)
        ]
    return metrics


def headlines() -> tuple[Metric, ...]:
    """Return the metrics read first of a comparison, after the agreement."""
    return _metrics_by_rank("headline")


def agreements() -> tuple[Metric, ...]:
    """Return what says how much two sides agree: where tokens choose, where anything is chosen, anywhere."""
    return _metrics_by_rank("agreement")


def agreement(measured: Iterable[tuple[str, str]]) -> str:
    """Return the agreement that is read first, of (checkpoint, metric): the first one that all checkpoints have.

    Checkpoints whose routers differ in kind are thus compared by one measure. One of which nothing agrees (a single
    expert) does not silence the others.
    """
    names = [metric.name for metric in agreements()]
    of: dict[str, set[str]] = {}
    for checkpoint, name in measured:
        if name in names:
            of.setdefault(checkpoint, set()).add(name)
    shared = set.intersection(*of.values()) if of else set()
    # Without a common agreement, the first is named although it may be missing.
    return next((name for name in names if name in shared), names[0])


def set_match(measured: Iterable[tuple[str, str]]) -> str:
    """Return the match of the sets that process tokens, of (checkpoint, metric); empty where there is none to read.

    With one expert per token the first choice is the set. Checkpoints with different numbers of experts per token have
    no such match in common.
    """
    by_checkpoint: dict[str, set[str]] = {}
    for checkpoint, name in measured:
        by_checkpoint.setdefault(checkpoint, set()).add(name)
    agree = {metric.name for metric in agreements()}
    # Checkpoints in which nothing is chosen do not silence the others.
    choosing = [names for names in by_checkpoint.values() if names & agree or any(map(TOP_K_SET.find, names))]
    per_token = {max(map(_depth, names)) for names in choosing}
    # With different K there is no common set match.
    if len(per_token) != 1:
        return ""
    sets = TOP_K_SET.name.format(k=per_token.pop())
    return sets if all(sets in names for names in choosing) else ""


def is_set_match(name: str) -> bool:
    """Whether a metric is the match of sets of experts, in any order."""
    return TOP_K_SET.find(name) is not None


def _depth(name: str) -> int:
    """Return of how many experts per token a match is; 1 for other metrics."""
    # With K = E only the ordered match exists, without an order only the match of sets: either one gives K.
    depth = TOP_K.groups(name) or TOP_K_SET.groups(name)
    return int(depth[0]) if depth else 1


def tokens_choose(first: str) -> bool:
    """Whether tokens choose in all checkpoints, by the agreement that is read first."""
    return first == agreements()[0].name


def compared_first(first: str, sets: str = "", *, modality: Modality = IMAGE) -> dict[tuple[str, str], str]:
    """Return the leading metrics of a comparison, (metric, null) -> title.

    Args:
        first: the agreement that is read first.
        sets: the match of the sets that process tokens; empty = none beside the first choice.
        modality: what checkpoints read.
    """
    titles = {}
    # What processes a token comes first.
    for match in (sets, first) if sets else (first,):
        beyond = Form(find(match).metric, "kappa")
        titles[beyond.name, "pooled"] = f"{beyond.full_label('pooled')} (pooled)"
        if match == sets:
            titles[beyond.name, "image"] = beyond.full_label("image", modality)
        titles[match, ""] = find(match).full_label()
    # Where tokens choose without a limit, none is ever without an expert.
    left_out = "others" if tokens_choose(first) else ""
    outcomes = {
        (metric.name, ""): metric.noun for metric in headlines() if not left_out or metric.along != left_out
    }
    return titles | outcomes


def compared_along_severities(first: str, sets: str = "") -> tuple[str, ...]:
    """Return of which metrics each difference along severities is shown: κ, and of what more is better.

    There are many differences along severities: of the others a sentence says what they come to.
    """
    beyond_sets = (f"{sets}{KAPPA}",) if sets else ()
    return (
        *beyond_sets,
        f"{first}{KAPPA}",
        *(metric.name for metric in headlines() if metric.better == "more"),
    )


def routing_along_severity(
    first: str, modality: Modality = IMAGE, *, sets: str = "", symbol: str = "κ"
) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table of the routing along a severity, (metric, null, heading).

    Args:
        first: the agreement that is read first.
        modality: what checkpoints read.
        sets: the match of the sets that process tokens; empty = none beside the first choice.
        symbol: what κ of ``first`` is called.
    """
    skipped = "others" if tokens_choose(first) else "tokens choose"
    # What processes a token comes first.
    matches = [(sets, "κ"), (first, symbol)] if sets else [(first, symbol)]
    of_matches = [
        column
        for match, symbol in matches
        for column in (
            (match, "", find(match).metric.short),
            *(
                (f"{match}{KAPPA}", null, f"{symbol}{kappa(null, modality).removeprefix('κ')}")
                for null in NULLS
            ),
        )
    ]
    return (
        *of_matches,
        *((metric.name, "", metric.short) for metric in _metrics_by_rank("along") if metric.along != skipped),
    )


def output_along_severity() -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table of the output along a severity, (metric, null, heading)."""
    return tuple((metric.name, "", metric.label) for metric in headlines() if not metric.along)


def _metrics_by_rank(field: str) -> tuple[Metric, ...]:
    """Return the metrics of which a field is set, in the order of reading."""
    metrics = [
        metric for metric in all_declarations() if isinstance(metric, Metric) and getattr(metric, field)
    ]
    return tuple(sorted(metrics, key=lambda one: one.rank))


def measuring(metric: str) -> list[str]:
    """Return the commands that measure a metric."""
    analyses = {*analyses_of(metric)}
    return [kind.name for kind in kinds() if analyses & {*measured_by(kind)}]
