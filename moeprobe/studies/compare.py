"""Compare checkpoints, from finished runs or from the checkpoints themselves: differences with verdicts, and files."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Unpack

import pandas as pd

from moeprobe.adapters.base import Models
from moeprobe.errors import FinishedError, RunWarning, UserError
from moeprobe.metrics.base import trial_lists
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import plan
from moeprobe.probes.engine.work import Plan
from moeprobe.probes.registry import comparable_kind, to_compare
from moeprobe.results import differences, verdicts
from moeprobe.results.finished import Measured
from moeprobe.results.folder import OutputFolder, output_folder
from moeprobe.results.naming import choose_names, names_in, rename_sidecar, rename_table
from moeprobe.results.palette import colors
from moeprobe.results.provenance import provenance
from moeprobe.results.showing import Figures, heading, one_line
from moeprobe.results.summaries import About
from moeprobe.runtime.arguments import several
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.files import shown
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.studies.compare_gate import check_metric, check_named, failing
from moeprobe.studies.compare_sources import analyses_of, are_runs, gather, is_aligned


@dataclass(frozen=True)
class Comparison:
    """Paired differences with their verdicts.

    Attributes:
        table: one difference per row, with ``columns.COLUMNS`` and ``COMPARISON_COLUMNS``.
        verdicts: one row per family (pair, tokens, metric, null) with its ``sentence``.
        failures: the rows of ``table`` that ``fail_if_worse`` is about and that fail; empty if nothing was asked.
        sidecar: request and provenance.
    """

    table: pd.DataFrame
    verdicts: pd.DataFrame
    failures: pd.DataFrame
    sidecar: dict[str, Any]

    def with_names(self) -> "Comparison":
        """Return the comparison with checkpoints as they are called on the screen and in figures."""
        names = names_in(self.sidecar)
        if not names:
            return self
        table = rename_table(self.table, names)
        return Comparison(
            table,
            differences.sentences(table),
            rename_table(self.failures, names),
            rename_sidecar(self.sidecar, names),
        )

    def plot(self) -> Figures:
        """Return the forest plot; nothing is written."""
        from moeprobe.results.figures.forest import draw

        renamed = self.with_names()
        return Figures(forest=draw(renamed.table, colors=renamed.sidecar["colours"]))

    def __repr__(self) -> str:
        return one_line("Comparison", {"rows": len(self.table), "failures": len(self.failures)})

    def _repr_html_(self) -> str:
        from moeprobe.results.layouts.page import fragment
        from moeprobe.results.layouts.verdicts import sentences, tables

        renamed = self.with_names()
        extra = self.sidecar["fail_if_worse"]
        rests = heading(self.sidecar["request"]["probe"], self.table)
        return fragment(
            f"Verdicts: {rests}; all differences in .table, the forest plot by .plot()",
            tables(renamed.table, extra=extra),
            sentences=sentences(renamed.verdicts, renamed.table, extra=extra),
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
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Comparison:
    """Compare checkpoints, the first of them being the reference.

    Args:
        given: folders of finished runs, or checkpoints (loaded or by path).
        probe: what to measure of checkpoints, one of ``probes.registry.comparable()``; None = match-ratio. Of finished
            runs it is fixed, as are the next three.
        data: data set; None = the one that the checkpoints were trained on.
        view: view of a match-ratio or a sweep; None = the probe's own.
        severities: of a sweep; None = the view's own steps.
        margin: differences inside ± margin, in the metric's own unit, count as none.
        fail_if_worse: a metric, e.g. "accuracy", whose worsening is to be reported in ``failures``: cells judged
            worse, and cells where the checkpoint has collapsed and the reference has not. All its cells are judged as
            one family.
        fail_unless_no_worse_than: how much worse that metric may be, in its own unit: ``failures`` are then the cells
            whose simultaneous interval does not exclude more, so that "cannot tell" fails.
        options: common options; of finished runs only ``layers``, ``out``, ``overwrite`` and ``svg``.
        watcher: receives the progress of the work.
        changes: options by name.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    options = combine(options, changes, defaults=_defaults(given, probe))
    settings: dict[str, Any] = {"probe": probe, "data": data, "view": view, "severities": severities}
    watcher, started = progress_of(watcher), time.perf_counter()
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
    models = several(given)
    if not are_runs(models):
        # Before anything is loaded.
        _check_two(models)
        if fail_if_worse is not None:
            check_named(fail_if_worse, to_compare(probe, view=view, severities=severities))
    gathered = gather(models, settings, options)
    if fail_if_worse is not None:
        check_metric(fail_if_worse, gathered.sample())
    _check_two(gathered.outline().checkpoints)
    choose_names(options.names, [*gathered.outline().checkpoints])
    request = _request(gathered.outline(), margin)
    if fail_if_worse is not None:
        request["judged_together"] = fail_if_worse

    def find(folder: OutputFolder | None) -> Comparison:
        measured = gathered.measure(watcher)
        names = choose_names(options.names, [*measured.checkpoints])
        table = _differences(
            measured, margin=margin, together=fail_if_worse, options=options, watcher=watcher
        )
        sentences = differences.sentences(table)
        failures = failing(table, fail_if_worse, allowed)
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": measured.checkpoints,
            "colours": colors(list(measured.checkpoints)),
            "runs": dict(measured.runs),
            "verdicts": sentences.to_dict("records"),
            "fail_if_worse": fail_if_worse,
            "fail_unless_no_worse_than": allowed,
            "failures": len(failures),
            **names,
            "wall_seconds": time.perf_counter() - started,
        } | provenance()
        result = Comparison(table, sentences, failures, sidecar)
        if folder is not None:
            from moeprobe.results.figures import save_all

            write_csv(folder.path / "comparison.csv", table)
            save_all(result.plot(), folder.path / "figures", svg=options.svg)
            folder.finish(sidecar)
        return result

    try:
        with output_folder(options.out, request, overwrite=options.overwrite) as folder:
            return find(folder)
    except FinishedError as error:
        # What was measured is in its folder; what may fail a continuous integration is found anew.
        warnings.warn(
            RunWarning(f"{shown(error.folder)} is finished; add --overwrite to repeat it."), stacklevel=2
        )
        return find(None)


@with_options
def plan_comparison(
    given: Models,
    *,
    probe: str | None = None,
    data: str | None = None,
    view: str | None = None,
    severities: Sequence[float] | None = None,
    options: Options | None = None,
    **changes: Unpack[Keywords],
) -> Plan:
    """Say what the probing of a comparison would take; arguments as for ``compare``.

    Raises:
        UserError: the runs are finished, so that there is nothing to plan.
    """
    models = several(given)
    if are_runs(models):
        raise UserError("Finished runs need no forward passes; leave --dry-run out.")
    kind = to_compare(probe, view=view, severities=severities)
    return plan(kind, models, data=data, options=combine(options, changes, defaults=kind.defaults))


def _check_two(checkpoints: Sized) -> None:
    if len(checkpoints) < 2:
        raise UserError("A comparison needs at least two checkpoints, or finished runs that hold as many.")


def _defaults(models: Models, probe: str | None) -> Mapping[str, Any]:
    """Return the common options that the probe of a comparison has where none are given."""
    return {} if are_runs(several(models)) else comparable_kind(probe).defaults


def _request(measured: Measured, margin: float) -> dict[str, Any]:
    """Return everything that the numbers of a comparison depend on."""
    keys = ("sha256", "capacity", "group_images")
    return {
        "kind": "compare",
        "margin": margin,
        "probe": measured.request,
        "checkpoints": {
            name: {key: info.get(key) for key in keys} for name, info in measured.checkpoints.items()
        },
        "runs": sorted(measured.runs.values()),
    }


def _differences(
    measured: Measured, *, margin: float, together: str | None, options: Options, watcher: Progress
) -> pd.DataFrame:
    request = measured.request
    groups, seeds = measured.training("group"), measured.training("seed")
    run_info = About(
        run="compare" if options.out is None else options.out.name,
        dataset=request["data"],
        split=request["split"],
        seed=request["seed"],
        aligned=is_aligned(measured),
        train_seeds=seeds,
        groups=groups,
    )
    analyses = analyses_of(measured)
    sums = measured.sums.pool_draws(lists=trial_lists(analyses))
    watcher.start("differences", sum(cell.num_images for cell in sums))
    table = differences.compare(
        sums,
        analyses=analyses,
        run_info=run_info,
        selected_pairs=differences.pairs(list(measured.checkpoints), groups=groups, seeds=seeds),
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
