"""Compare checkpoints, from finished runs or from the checkpoints themselves: differences with verdicts, and files."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import pandas as pd

from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.metrics import registry
from moeprobe.metrics.base import trial_lists
from moeprobe.probes.engine import run as probing
from moeprobe.probes.engine.checks import KINDS, make_analyses
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.question import CLEAN
from moeprobe.probes.engine.run import Plan
from moeprobe.results import differences, verdicts
from moeprobe.results.finished import Measured
from moeprobe.results.folder import output_folder, provenance
from moeprobe.results.palette import colours
from moeprobe.results.showing import Figures, heading, one_line, table_html
from moeprobe.results.summaries import About, Analyses, estimators
from moeprobe.results.tables import cells, over_draws
from moeprobe.runtime.arguments import several
from moeprobe.runtime.catalog import VIEWS, unknown
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher, watching
from moeprobe.studies.compare_sources import are_runs, gather, probe_arguments


@dataclass(frozen=True)
class Comparison:
    """Paired differences with their verdicts.

    Attributes:
        table: one difference per row; the columns are those of ``columns.COLUMNS`` and ``COMPARISON_COLUMNS``.
        verdicts: one row per family (pair, tokens, metric, null) with its ``sentence``.
        failures: the rows of ``table`` that ``fail_if_worse`` is about and that fail; empty if nothing was asked.
        sidecar: what was asked, and provenance.
    """

    table: pd.DataFrame
    verdicts: pd.DataFrame
    failures: pd.DataFrame
    sidecar: dict[str, Any]

    def plot(self) -> Figures:
        """Return the forest plot; nothing is written."""
        from moeprobe.results.figures.forest import draw

        return Figures(forest=draw(self.table, colours=self.sidecar["colours"]))

    def __repr__(self) -> str:
        return one_line("Comparison", {"rows": len(self.table), "failures": len(self.failures)})

    def _repr_html_(self) -> str:
        sentences = self.verdicts[["sentence"]].rename(columns={"sentence": "verdict"})
        rests = heading(self.sidecar["request"]["probe"], self.table)
        return table_html(
            sentences, caption=f"Verdicts: {rests}; all differences in .table, the forest plot by .plot()"
        )


@with_options
def compare(
    given: Models,
    *,
    probe: str | None = None,
    data: str | None = None,
    view: str | None = None,
    severities: Sequence[float] | None = None,
    margin: float = verdicts.MARGIN,
    fail_if_worse: str | None = None,
    fail_unless_no_worse_than: float | None = None,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> Comparison:
    """Compare checkpoints, the first of them being the reference.

    Args:
        given: folders of finished runs, or checkpoints (loaded or by path).
        probe: what to measure of checkpoints, one of ``comparable.PROBES``; None = match-ratio. Of finished runs it is
            settled, as are the next three.
        data: data set; None = the one that the checkpoints were trained on.
        view: view of a match-ratio or a sweep; None = the probe's own.
        severities: of a sweep; None = the view's own steps.
        margin: differences inside ± margin, in the metric's own unit, count as none.
        fail_if_worse: a metric, e.g. "accuracy", whose worsening is to be reported in ``failures``: cells judged
            worse, and cells where the checkpoint has collapsed and the reference has not. All its cells are judged as
            one family.
        fail_unless_no_worse_than: how much worse that metric may be, in its own unit: ``failures`` are then the cells
            whose simultaneous interval does not exclude more, so that "cannot tell" fails.
        options: common options; of finished runs only ``layers``, ``out`` and ``overwrite``.
        watcher: told how the work advances.
        changes: options by name.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    options = combine(options, changes)
    asked: dict[str, Any] = {"probe": probe, "data": data, "view": view, "severities": severities}
    watcher, started = watching(watcher), time.perf_counter()
    if not (math.isfinite(margin) and margin >= 0):
        raise UserError(f"--margin takes a number from 0 up; got {margin}.")
    allowed = fail_unless_no_worse_than
    if allowed is not None:
        if fail_if_worse is None:
            raise UserError(
                "--fail-unless-no-worse-than says how much; name the metric: --fail-if-worse METRIC."
            )
        if not (math.isfinite(allowed) and allowed > 0):
            raise UserError(f"--fail-unless-no-worse-than takes a number above 0; got {allowed}.")
    gathered = gather(several(given), asked, options)
    if fail_if_worse is not None:
        _check_metric(fail_if_worse, gathered.sample())
    if len(gathered.asked().checkpoints) < 2:
        raise UserError("A comparison needs at least two checkpoints, or finished runs that hold as many.")
    request = _request(gathered.asked(), margin)
    if fail_if_worse is not None:
        request["judged_together"] = fail_if_worse
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        measured = gathered.measure(watcher)
        table = _differences(
            measured, margin=margin, together=fail_if_worse, options=options, watcher=watcher
        )
        said = differences.sentences(table)
        failures = _failures(table, fail_if_worse, allowed)
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": measured.checkpoints,
            "colours": colours(list(measured.checkpoints)),
            "runs": dict(measured.runs),
            "verdicts": said.to_dict("records"),
            "fail_if_worse": fail_if_worse,
            "fail_unless_no_worse_than": allowed,
            "failures": len(failures),
            "wall_seconds": time.perf_counter() - started,
        } | provenance()
        result = Comparison(table, said, failures, sidecar)
        if folder is not None:
            from moeprobe.results.figures import save

            write_csv(folder.path / "comparison.csv", table)
            for name, figure in result.plot().items():
                save(figure, folder.path / "figures" / name)
            folder.finish(sidecar)
    return result


@checked
def plan_comparison(
    given: Models,
    *,
    probe: str | None = None,
    data: str | None = None,
    view: str | None = None,
    severities: Sequence[float] | None = None,
    options: Options | None = None,
) -> Plan:
    """Say what the probing of a comparison would take; arguments as for ``compare``.

    Raises:
        UserError: the runs are finished, so that there is nothing to plan.
    """
    models = several(given)
    if are_runs(models):
        raise UserError("Finished runs need no forward passes; leave --dry-run out.")
    arguments = probe_arguments(probe=probe, data=data, view=view, severities=severities)
    return probing.plan(models=models, options=options, **arguments)


def _request(measured: Measured, margin: float) -> dict[str, Any]:
    """Return what determines the numbers of a comparison."""
    keys = ("sha256", "capacity", "group_images")
    return {
        "kind": "compare",
        "margin": margin,
        "probe": measured.request,
        "checkpoints": {
            name: {key: about.get(key) for key in keys} for name, about in measured.checkpoints.items()
        },
        "runs": sorted(measured.runs.values()),
    }


def analyses_of(measured: Measured) -> Analyses:
    """Return what was measured, to be said again of the sums."""
    return make_analyses(measured.request["analyses"], class_null=measured.request.get("class_null", False))


def is_aligned(measured: Measured) -> bool:
    """Whether the view leaves the patches where they are."""
    if "aligned" in measured.request:  # of traces, which know it themselves
        return bool(measured.request["aligned"])
    name = measured.request["view"]["name"]
    return name != CLEAN and VIEWS.get(name).aligned


def _differences(
    measured: Measured, *, margin: float, together: str | None, options: Options, watcher: Watcher
) -> pd.DataFrame:
    request = measured.request
    groups, seeds = measured.training("group"), measured.training("seed")
    about = About(
        run="compare" if options.out is None else options.out.name,
        dataset=request["data"],
        split=request["split"],
        seed=request["seed"],
        aligned=is_aligned(measured),
        train_seeds=seeds,
        groups=groups,
    )
    analyses = analyses_of(measured)
    images = over_draws(measured.images, lists=trial_lists(analyses))
    watcher.start("differences", images.num_rows)
    table = differences.compare(
        images,
        analyses=analyses,
        about=about,
        wanted=differences.pairs(list(measured.checkpoints), groups=groups, seeds=seeds),
        margin=margin,
        together=together,
        progress=watcher.advance,
    )
    if table.empty:
        raise UserError(
            f"{', '.join(measured.checkpoints)} have no MoE layer in common in which the same was measured, so there "
            "is nothing to compare."
        )
    return table


def _check_metric(metric: str, measured: Measured) -> None:
    """Raise ``UserError`` unless the metric can be measured in several checkpoints, and can become worse."""
    found = {
        (one.name, cell.place(), checkpoint)
        for checkpoint, cell, _, columns in cells(measured.images)
        for one in estimators(columns, analyses_of(measured), aligned=is_aligned(measured))
    }
    names = {name for name, _, _ in found}
    known = sorted(name for name in names if registry.find(name).direction)
    if metric in names and metric not in known:
        raise UserError(f"More {metric} is neither better nor worse; take one of: {', '.join(known)}.")
    if metric not in known:
        computed_by = {*registry.analyses_of(metric)}
        measured_by = [kind for kind, names in KINDS.items() if computed_by & {*names}]
        where = f" {metric} is measured by: {', '.join(measured_by)}." if measured_by else ""
        raise UserError(unknown("metric", metric, known) + where)
    times = Counter((name, place) for name, place, _ in found)
    shared = {name for (name, _), number in times.items() if number > 1}
    if len(measured.checkpoints) > 1 and metric not in shared:
        raise _not_shared(metric, shared)


def _not_shared(metric: str, shared: Iterable[str]) -> UserError:
    names = ", ".join(sorted({name for name in shared if registry.find(name).direction}))
    return UserError(
        f"The checkpoints have {metric} in no layer in common, so nothing says if it is worse; what they share: "
        f"{names or 'nothing that could be'}."
    )


def _failures(table: pd.DataFrame, metric: str | None, allowed: float | None) -> pd.DataFrame:
    """Return the rows of the metric that are worse, where the checkpoint alone has collapsed, or nothing can be judged.

    With ``allowed``, what is not shown to be worse by less than that counts, in the place of what is shown to be worse.

    What cannot be judged (too few images, chance all but 1) must not pass for steady; of prefix tokens it may, but for
    what is not finite.

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
        shown = (lowest > -allowed) | (itself & (rows["verdict"] == "identical"))
        # Where nothing can be judged, prefix tokens are judged as without.
        without = (rows["tokens"] == "prefix") & (unjudged | (rows["collapsed"] != ""))
        failed = ~shown & (~without | (rows["collapsed"] == "checkpoint"))
    failed |= rows["verdict"] == verdicts.NOT_FINITE
    return rows[failed | (unjudged & (rows["tokens"] != "prefix"))]
