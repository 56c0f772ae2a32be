"""Which differences of a comparison fail it, e.g. in continuous integration."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from moeprobe.declarations import Kind
from moeprobe.declarations.registry import measured_by
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import AROUND
from moeprobe.judging import words
from moeprobe.metrics import registry
from moeprobe.metrics.registry import measuring
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.results.columns import UNJUDGED
from moeprobe.results.finished import Measured
from moeprobe.results.values import estimators
from moeprobe.runtime.catalog import describe_unknown


@dataclass(frozen=True)
class Gate:
    """Which differences fail a comparison; a worsening allowed of no metric, or no number, raises ``UserError``.

    Attributes:
        metric: whose worsening fails; None = nothing fails.
        allowed: how much worse it may be: all fails that is not shown to be worse by less. None = all that is worse.
    """

    metric: str | None
    allowed: float | None = None

    def __post_init__(self) -> None:
        if self.allowed is None:
            return
        allowed = option("fail_unless_no_worse_than")
        if self.metric is None:
            raise UserError(f"{allowed} says how much; name the metric: {option('fail_if_worse', 'METRIC')}.")
        if not (math.isfinite(self.allowed) and self.allowed > 0):
            raise UserError(f"{allowed} takes a number above 0; got {self.allowed}.")

    def check_kind(self, kind: Kind) -> None:
        """Raise ``UserError`` where a kind of run has no such metric, or it is never better or worse.

        Whether the checkpoints have it in some layer is known when a sample is measured (``check_measured``).
        """
        if self.metric is None:
            return
        analyses = {*measured_by(kind)}
        form = registry.find(self.metric)
        if form.declared and analyses & {*registry.analyses_of(self.metric)} and form.direction:
            return
        names = [name for base in registry.names() for name in (base, f"{base}_kappa")]
        forms = {name: registry.find(name) for name in names if analyses & {*registry.analyses_of(name)}}
        candidates = [name for name, form in forms.items() if form.declared and form.direction]
        raise _no_metric(self.metric, sorted(candidates))

    def check_measured(self, measured: Measured) -> None:
        """Raise ``UserError`` unless the metric is measured in several checkpoints, and can become worse."""
        assert self.metric is not None
        aligned, analyses = measured.is_aligned, analyses_of(measured.request)
        # Some images of a cell are enough to know which metrics it has.
        measured_metrics = {
            (estimator.name, stored.cell.site(), stored.checkpoint)
            for stored in measured.sums
            for estimator in estimators(next(iter(stored.blocks()))[1], analyses, aligned=aligned)
        }
        names = {name for name, _, _ in measured_metrics}
        with_direction = sorted(name for name in names if registry.find(name).direction)
        if self.metric not in with_direction:
            raise _no_metric(self.metric, with_direction)
        times = Counter((name, site) for name, site, _ in measured_metrics)
        shared = {name for (name, _), number in times.items() if number > 1}
        if len(measured.checkpoints) > 1 and self.metric not in shared:
            raise _not_shared(self.metric, shared)

    def failures(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that fail: worse, collapsed in the checkpoint alone, or impossible to judge.

        Rows without a verdict (too few images, chance near 1) must not pass for stable; rows of tokens around the input
        may, except values that are not finite.

        Raises:
            UserError: the metric was compared nowhere, so that nothing can be vouched for.
        """
        rows = table[table["metric"] == self.metric]
        if self.metric is not None and rows.empty:
            raise _not_shared(self.metric, table["metric"])
        unjudged = rows["verdict"].isin(UNJUDGED)
        unjudged |= rows["verdict"].isin(["higher", "lower"]) & (rows["judgement"] == "")
        failed = (rows["judgement"] == "worse") | (rows["collapsed"] == "checkpoint")
        if self.metric is not None and self.allowed is not None:
            lowest = rows["sim_low"] if registry.find(self.metric).direction > 0 else -rows["sim_high"]
            # What is the same by construction: how far the clean input agrees with itself.
            itself = rows["severity"].eq(0) & (not registry.find(self.metric).metric.of_labels)
            excluded = (lowest > -self.allowed) | (itself & (rows["verdict"] == "identical"))
            # Where nothing can be judged, tokens around the input are judged as without.
            without = rows["tokens"].isin(AROUND) & (unjudged | (rows["collapsed"] != ""))
            failed = ~excluded & (~without | (rows["collapsed"] == "checkpoint"))
        failed |= rows["verdict"] == words.NOT_FINITE
        return rows[failed | (unjudged & ~rows["tokens"].isin(AROUND))]


def _no_metric(metric: str, names: Sequence[str]) -> UserError:
    if registry.find(metric).declared and not registry.find(metric).direction:
        return UserError(f"More {metric} is neither better nor worse; take one of: {', '.join(names)}.")
    commands = ", ".join(measuring(metric))
    where = f" {metric} is measured by: {commands}." if commands else ""
    return UserError(describe_unknown("metric", metric, names) + where)


def _not_shared(metric: str, shared: Iterable[str]) -> UserError:
    names = ", ".join(sorted({name for name in shared if registry.find(name).direction}))
    return UserError(
        f"The checkpoints have {metric} in no layer in common, so nothing says if it is worse; what they share: "
        f"{names or 'nothing that could be'}."
    )
