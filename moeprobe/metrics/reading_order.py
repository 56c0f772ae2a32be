"""What is read first: of a run, of a comparison, and along a severity. Follows from what metrics declare."""

from __future__ import annotations

from collections.abc import Iterable

from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.metrics.declaration import KAPPA, NULLS, Metric
from moeprobe.metrics.registry import Form, declared, find, kappa


def headlines() -> tuple[Metric, ...]:
    """Return what is read first of a comparison, after the agreement."""
    return _ranked("headline")


def agreements() -> tuple[Metric, ...]:
    """Return what says how much two sides agree: where tokens choose, where anything is chosen, anywhere."""
    return _ranked("agreement")


def agreement(measured: Iterable[tuple[str, str]]) -> str:
    """Return the agreement that is read first, of (checkpoint, metric): the first one that all checkpoints have.

    Checkpoints whose routers differ in kind are thus compared by one measure. One of which nothing agrees (a single
    expert) does not silence the others.
    """
    known = [metric.name for metric in agreements()]
    of: dict[str, set[str]] = {}
    for checkpoint, name in measured:
        if name in known:
            of.setdefault(checkpoint, set()).add(name)
    shared = set.intersection(*of.values()) if of else set()
    return next((name for name in known if name in shared), known[0])


def tokens_choose(first: str) -> bool:
    """Whether tokens choose in all checkpoints, by the agreement that is read first."""
    return first == agreements()[0].name


def compared_first(first: str) -> dict[tuple[str, str], str]:
    """Return what is read first of a comparison, (metric, null) -> title, by the agreement that is read first."""
    agree, beyond = find(first), Form(find(first).metric, "kappa")
    titles = {
        (beyond.name, "pooled"): f"{beyond.full_label('pooled')} (pooled)",
        (first, ""): agree.full_label(),
    }
    # Where tokens choose without a limit, none is ever without an expert.
    left_out = "others" if tokens_choose(first) else ""
    rest = {(one.name, ""): one.noun for one in headlines() if not left_out or one.along != left_out}
    return titles | rest


def compared_along_severities(first: str) -> tuple[str, ...]:
    """Return of which metrics each difference along severities is shown: κ, and of what more is better.

    There are many differences along severities: of the others a sentence says what they come to.
    """
    return (f"{first}{KAPPA}", *(one.name for one in headlines() if one.better == "more"))


def routing_along_severity(first: str, modality: Modality = IMAGE) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table of the routing along a severity, (metric, null, heading)."""
    skipped = "others" if tokens_choose(first) else "tokens choose"
    return (
        (first, "", find(first).metric.short),
        *((f"{first}{KAPPA}", null, kappa(null, modality)) for null in NULLS),
        *((one.name, "", one.short) for one in _ranked("along") if one.along != skipped),
    )


def output_along_severity() -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table of the output along a severity, (metric, null, heading)."""
    return tuple((one.name, "", one.label) for one in headlines() if not one.along)


def _ranked(field: str) -> tuple[Metric, ...]:
    """Return the metrics of which a field is set, in the order of reading."""
    metrics = [one for one in declared() if isinstance(one, Metric) and getattr(one, field)]
    return tuple(sorted(metrics, key=lambda one: one.rank))
