"""What is read first: of a run, of a comparison, and along a severity. Follows from what metrics declare."""

from __future__ import annotations

from collections.abc import Iterable

from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.metrics.analyses.match import TOP_K, TOP_K_SET
from moeprobe.metrics.declaration import KAPPA, NULLS, Metric
from moeprobe.metrics.registry import Form, declared, find, kappa


def headlines() -> tuple[Metric, ...]:
    """Return the metrics read first of a comparison, after the agreement."""
    return _ranked("headline")


def agreements() -> tuple[Metric, ...]:
    """Return what says how much two sides agree: where tokens choose, where anything is chosen, anywhere."""
    return _ranked("agreement")


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
    choosing = [names for names in by_checkpoint.values() if names & agree or any(map(TOP_K_SET.find, names))]
    per_token = {max(map(_depth, names)) for names in choosing}
    if len(per_token) != 1:
        return ""
    sets = TOP_K_SET.name.format(k=per_token.pop())
    return sets if all(sets in names for names in choosing) else ""


def _depth(name: str) -> int:
    """Return of how many experts per token a match is; 1 for other metrics."""
    # Of the set of all experts only the order is matched, and without an order only the set.
    depth = TOP_K.groups(name) or TOP_K_SET.groups(name)
    return int(depth[0]) if depth else 1


def tokens_choose(first: str) -> bool:
    """Whether tokens choose in all checkpoints, by the agreement that is read first."""
    return first == agreements()[0].name


def compared_first(first: str, sets: str = "") -> dict[tuple[str, str], str]:
    """Return the leading metrics of a comparison, (metric, null) -> title.

    Args:
        first: the agreement that is read first.
        sets: the match of the sets that process tokens; empty = none beside the first choice.
    """
    agree, beyond = find(first), Form(find(first).metric, "kappa")
    titles = {
        (beyond.name, "pooled"): f"{beyond.full_label('pooled')} (pooled)",
        (first, ""): agree.full_label(),
    }
    if sets:
        beyond_sets = Form(find(sets).metric, "kappa")
        titles |= {
            (beyond_sets.name, "pooled"): f"{beyond_sets.full_label('pooled')} (pooled)",
            (beyond_sets.name, "image"): beyond_sets.full_label("image"),
            (sets, ""): find(sets).full_label(),
        }
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
        f"{first}{KAPPA}",
        *beyond_sets,
        *(metric.name for metric in headlines() if metric.better == "more"),
    )


def routing_along_severity(
    first: str, modality: Modality = IMAGE, *, sets: str = ""
) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table of the routing along a severity, (metric, null, heading)."""
    skipped = "others" if tokens_choose(first) else "tokens choose"
    of_sets = [(sets, "", find(sets).metric.short)] if sets else []
    of_sets += [
        (f"{sets}{KAPPA}", null, f"any order: {kappa(null, modality)}")
        for null in ("pooled", "image")
        if sets
    ]
    return (
        (first, "", find(first).metric.short),
        *((f"{first}{KAPPA}", null, kappa(null, modality)) for null in NULLS),
        *of_sets,
        *((metric.name, "", metric.short) for metric in _ranked("along") if metric.along != skipped),
    )


def output_along_severity() -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table of the output along a severity, (metric, null, heading)."""
    return tuple((metric.name, "", metric.label) for metric in headlines() if not metric.along)


def _ranked(field: str) -> tuple[Metric, ...]:
    """Return the metrics of which a field is set, in the order of reading."""
    metrics = [metric for metric in declared() if isinstance(metric, Metric) and getattr(metric, field)]
    return tuple(sorted(metrics, key=lambda one: one.rank))
