"""The gate of a comparison: whether a metric can become worse, and where it has."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pandas as pd

from moeprobe.errors import UserError
from moeprobe.metrics import registry
from moeprobe.probes.base import Kind
from moeprobe.probes.registry import measured_by, measuring
from moeprobe.results import verdicts
from moeprobe.results.finished import Measured
from moeprobe.results.stored_cell import Arrays, StoredCell
from moeprobe.results.values import estimators
from moeprobe.runtime.catalog import unknown
from moeprobe.studies.compare_sources import analyses_of, is_aligned


def check_named(metric: str, kind: Kind) -> None:
    """Raise ``UserError`` where a metric does not exist, is never better or worse, or is not one of a kind of run.

    Whether the checkpoints have it in some layer is known when a sample is measured (``check_metric``).
    """
    measured = {*measured_by(kind)}
    names = (
        name
        for base in registry.names()
        for name in (base, f"{base}_kappa")
        if measured & {*registry.analyses_of(name)}
    )
    with_direction = sorted(
        name for name in names if registry.find(name).declared and registry.find(name).direction
    )
    form = registry.find(metric)
    if form.declared and measured & {*registry.analyses_of(metric)} and form.direction:
        return
    raise _no_metric(metric, with_direction)


def _no_metric(metric: str, names: Sequence[str]) -> UserError:
    if registry.find(metric).declared and not registry.find(metric).direction:
        return UserError(f"More {metric} is neither better nor worse; take one of: {', '.join(names)}.")
    commands = ", ".join(measuring(metric))
    where = f" {metric} is measured by: {commands}." if commands else ""
    return UserError(unknown("metric", metric, names) + where)


def check_metric(metric: str, measured: Measured) -> None:
    """Raise ``UserError`` unless the metric can be measured in several checkpoints, and can become worse."""
    measured_metrics = {
        (estimator.name, stored.cell.site(), stored.checkpoint)
        for stored in measured.sums
        for estimator in estimators(_first_block(stored), analyses_of(measured), aligned=is_aligned(measured))
    }
    names = {name for name, _, _ in measured_metrics}
    with_direction = sorted(name for name in names if registry.find(name).direction)
    if metric not in with_direction:
        raise _no_metric(metric, with_direction)
    times = Counter((name, site) for name, site, _ in measured_metrics)
    shared = {name for (name, _), number in times.items() if number > 1}
    if len(measured.checkpoints) > 1 and metric not in shared:
        raise _not_shared(metric, shared)


def _first_block(stored: StoredCell) -> Arrays:
    """Return the columns of some of its images: enough to know which metrics there are."""
    return next(columns for _, columns in stored.blocks())


def _not_shared(metric: str, shared: Iterable[str]) -> UserError:
    names = ", ".join(sorted({name for name in shared if registry.find(name).direction}))
    return UserError(
        f"The checkpoints have {metric} in no layer in common, so nothing says if it is worse; what they share: "
        f"{names or 'nothing that could be'}."
    )


def failing(table: pd.DataFrame, metric: str | None, allowed: float | None) -> pd.DataFrame:
    """Return the rows of the metric that are worse, where the checkpoint alone has collapsed, or nothing can be judged.

    With ``allowed``, a row fails unless it is shown to be worse by less than that. Without it, a row fails if it is
    shown to be worse.

    Rows without a verdict (too few images, chance near 1) must not pass for stable; rows of prefix tokens may, except
    values that are not finite.

    Raises:
        UserError: the metric was compared nowhere, so that nothing can be vouched for.
    """
    rows = table[table["metric"] == metric]
    if metric is not None and rows.empty:
        raise _not_shared(metric, table["metric"])
    unjudged = rows["verdict"].isin(verdicts.UNJUDGED)
    unjudged |= rows["verdict"].isin(["higher", "lower"]) & (rows["judgement"] == "")
    failed = (rows["judgement"] == "worse") | (rows["collapsed"] == "checkpoint")
    if metric is not None and allowed is not None:
        lowest = rows["sim_low"] if registry.find(metric).direction > 0 else -rows["sim_high"]
        # What is the same by construction: how far the clean input agrees with itself.
        itself = rows["severity"].eq(0) & (not registry.find(metric).metric.of_labels)
        excluded = (lowest > -allowed) | (itself & (rows["verdict"] == "identical"))
        # Where nothing can be judged, prefix tokens are judged as without.
        without = (rows["tokens"] == "prefix") & (unjudged | (rows["collapsed"] != ""))
        failed = ~excluded & (~without | (rows["collapsed"] == "checkpoint"))
    failed |= rows["verdict"] == verdicts.NOT_FINITE
    return rows[failed | (unjudged & (rows["tokens"] != "prefix"))]
