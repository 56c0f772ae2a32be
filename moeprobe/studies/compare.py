"""Compare checkpoints by their finished runs, or by probing them: paired differences with verdicts.

In the order in which it happens: runs or checkpoints are resolve, the request is made of them, they are measured,
their differences are judged, and the gate says which fail. A folder works as for any run (``probes.engine.run``).
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.declarations.fields import NONE, arg_of, fields_of, flag_of
from moeprobe.declarations.options import Keywords, Options, combine, with_options
from moeprobe.declarations.registry import comparable_kind, to_compare
from moeprobe.errors import FinishedError, UserError, already_finished, option
from moeprobe.judging import differences, trainings, words
from moeprobe.metrics.base import trial_lists
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.probes.engine.run import Plan, Work, plan, prepare, run, run_once
from moeprobe.probes.engine.units import units_of_inputs
from moeprobe.results import finished
from moeprobe.results.finished import Measured
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.showing import Figures, heading, one_line
from moeprobe.results.sidecars import Request, Sidecar, choose_names, names_in, rename_sidecar, rename_table
from moeprobe.results.stored import SumsStore
from moeprobe.results.summaries import About
from moeprobe.runtime.arguments import several
from moeprobe.runtime.files import display_path, resolve, write_csv
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.studies.gate import Gate
from moeprobe.studies.hand_pairs import HandPair, names_of_pairs
from moeprobe.studies.looks import Look, LookSeries

if TYPE_CHECKING:
    from moeprobe.probes.engine.measurement import Measurement


@dataclass(frozen=True)
class Comparison:
    """Paired differences with their verdicts.

    Attributes:
        table: one difference per row, with ``columns.COLUMNS`` and ``COMPARISON_COLUMNS``.
        verdicts: one row per family (pair, tokens, metric, null) with its ``sentence``, the loss that is
            excluded, whether the two are equivalent, and how many images would show it; the last two are None without
            a margin of equivalence.
        failures: the rows of ``table`` that ``fail_if_worse`` is about and that fail; empty if nothing was asked.
        sidecar: request and provenance.
        trainings: mean differences of two groups of three or more trainings, over seeds and images; else empty.
    """

    table: pd.DataFrame
    verdicts: pd.DataFrame
    failures: pd.DataFrame
    sidecar: Sidecar
    trainings: pd.DataFrame = field(default_factory=pd.DataFrame)

    def with_names(self) -> "Comparison":
        """Return the comparison with checkpoints as they are called on the screen and in figures."""
        names = names_in(self.sidecar)
        if not names:
            return self
        table = rename_table(self.table, names)
        return Comparison(
            table,
            _verdicts(table, self.trainings, self.sidecar.get("equivalent_within")),
            rename_table(self.failures, names),
            rename_sidecar(self.sidecar, names),
            self.trainings,
        )

    def plot(self) -> Figures:
        """Return the forest plot; nothing is written."""
        from moeprobe.results.figures.forest import draw

        renamed = self.with_names()
        return Figures(forest=draw(renamed.table, colors=renamed.sidecar.colors))

    def __repr__(self) -> str:
        return one_line("Comparison", {"rows": len(self.table), "failures": len(self.failures)})

    def _repr_html_(self) -> str:
        from moeprobe.judging.tables import overview, sentences, tables
        from moeprobe.results.layouts.page import fragment

        renamed, extra = self.with_names(), self.sidecar.fail_if_worse
        return fragment(
            f"Verdicts: {heading(self.sidecar.request.probe, self.table)}; all differences in .table, the forest plot "
            "by .plot()",
            [
                overview(renamed.table, trainings=renamed.trainings, extra=extra),
                *tables(renamed.table, extra=extra),
            ],
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
    margin: float = words.MARGIN,
    equivalent_within: float | None = None,
    fail_if_worse: str | None = None,
    fail_unless_no_worse_than: float | None = None,
    pairs: Sequence[HandPair] = (),
    looks: int | None = None,
    history: str | Path | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Comparison:
    """Compare checkpoints, the first of them being the reference.

    Two recordings load their two experts with 2 and 2, and with 3 and 1 tokens, an entropy of 1 and 0.811 bits:

    >>> from pathlib import Path
    >>> from moeprobe import api
    >>> for name, experts in ("even", [[0], [1], [1], [0]]), ("uneven", [[0], [1], [0], [0]]):
    ...     _ = Path(f"{name}.jsonl").write_text(f'{{"id": "r17", "layer": "mlp", "experts": {experts}}}')
    ...     _ = api.import_trace(f"{name}.jsonl", f"{name}.parquet", num_experts=2)
    ...     _ = api.analyze_trace(f"{name}.parquet", out=name, figures=False)
    >>> table = api.compare(["even", "uneven"]).table.set_index("metric")
    >>> round(float(table.value["load_entropy"]), 3), table.flag["load_entropy"]
    (-0.189, 'few_images')

    Args:
        given: folders of finished runs, or checkpoints (loaded or by path).
        probe: what to measure of checkpoints, one of ``declarations.registry.comparable()``; None = match-ratio. For
            finished runs it is fixed, as are the next three.
        data: data set; None = the one that the checkpoints were trained on.
        view: view of a match-ratio or a sweep; None = the probe's own.
        severities: of a sweep; None = the view's own steps.
        margin: differences inside ± margin, in the metric's own unit, count as none.
        equivalent_within: say of each share, κ and gate if two checkpoints are equivalent within ± this: if every
            simultaneous interval lies inside, and how many images show it if not.
        fail_if_worse: a metric, e.g. "accuracy", whose worsening is to be reported in ``failures``: cells judged
            worse, and cells where the checkpoint has collapsed and the reference has not. All its cells are judged as
            one family.
        fail_unless_no_worse_than: how much worse that metric may be, in its own unit: ``failures`` are then the cells
            whose simultaneous interval does not exclude more, so that "no significant difference" may fail.
        pairs: (reference, checkpoint) of each difference, by name or as in ``given``; none = by seed and group, or all
            against the first. A checkpoint stands in one pair. Three or more make a claim about trainings.
        looks: number of comparisons of one new checkpoint with one reference; intervals hold in all. Needs ``history``.
        history: file that counts the looks; made at the first. A checkpoint that was looked at is the same look.
        options: common options; of finished runs only ``layers``, ``out``, ``overwrite`` and ``svg``.
        watcher: receives the progress of the work.
        changes: options by name.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    models = several(given)
    from_runs = are_runs(models)
    options = combine(options, changes, defaults={} if from_runs else comparable_kind(probe).defaults)
    if not (math.isfinite(margin) and margin >= 0):
        raise UserError(f"{option('margin')} takes a number from 0 up; got {margin}.")
    if equivalent_within is not None and not (math.isfinite(equivalent_within) and equivalent_within > 0):
        raise UserError(f"{option('equivalent_within')} takes a number above 0; got {equivalent_within}.")
    gate = Gate(fail_if_worse, fail_unless_no_worse_than)
    series = LookSeries.of(looks, history)
    settings = {"probe": probe, "data": data, "view": view, "severities": severities}
    if from_runs:
        sources = runs_to_compare(models, options, settings)
    else:
        sources = _checkpoints_to_compare(models, options, settings, gate)
    if pairs:
        checkpoints = list(sources.measured.checkpoints)
        sources = dataclasses.replace(sources, pairs=names_of_pairs(pairs, models, checkpoints))
    work = ComparisonWork(
        sources, options, margin=margin, equivalent_within=equivalent_within, gate=gate, series=series
    )
    progress = progress_of(watcher)
    try:
        return work.execute(progress)
    except FinishedError as error:
        if not sources.hashed:
            raise  # as of every probe: nobody knows whether it is of these models
        warnings.warn(already_finished(display_path(error.folder)), stacklevel=2)
        # What was measured is in its folder; what may fail a continuous integration is judged again.
        return work.execute_in(None, progress)


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
        raise UserError(f"Finished runs need no forward passes; leave {option('dry_run')} out.")
    kind = to_compare(probe, view=view, severities=severities)
    return plan(kind, models, data=data, options=combine(options, changes, defaults=kind.defaults))


def are_runs(models: Sequence[Model]) -> bool:
    """Whether all that is given are folders of runs.

    Raises:
        UserError: some are and some are not.
    """
    runs = [isinstance(item, str | Path) and finished.is_run(Path(item)) for item in models]
    if any(runs) and not all(runs):
        run, checkpoint = models[runs.index(True)], models[runs.index(False)]
        name = checkpoint.name if isinstance(checkpoint, Checkpoint) else checkpoint
        raise UserError(
            f"{run} is a finished run and {name} is not; give runs only, or checkpoints only "
            "(the run's table.json names its checkpoints)."
        )
    return bool(runs) and all(runs)


@dataclass(frozen=True)
class Sources:
    """What is compared.

    Attributes:
        measured: the request and the checkpoints, and the sums of finished runs; of checkpoints none yet.
        names: the entry of the sidecar about what the checkpoints are called.
        work: what will measure checkpoints; None of finished runs.
        pairs: (checkpoint, reference) of each difference, where they were given by hand.
    """

    measured: Measured
    names: Mapping[str, Mapping[str, str]]
    work: "Measurement[Result] | None" = None
    pairs: Sequence[tuple[str, str]] = ()

    @property
    def hashed(self) -> bool:
        """Whether every checkpoint has a hash; finished runs are recognized by their sums."""
        if self.work is None:
            return True
        from moeprobe.probes.engine.models import are_hashed  # here, since it imports torch

        return are_hashed(self.work.models)

    def sample(self) -> Measured:
        """Return the sums of one batch of every checkpoint, which tell the metrics there will be."""
        if self.work is None:
            return self.measured
        return dataclasses.replace(self.measured, sums=self.work.sample(self.work.options.batch_size))

    def measure(self, progress: Progress) -> Measured:
        """Measure all checkpoints; returns their sums.

        With an output folder they are probed in a run of its own inside, which resumes where it stopped.
        """
        work = self.work
        if work is None:
            return self.measured
        out = None if work.options.out is None else work.options.out / "probe"
        result = run_once(
            lambda options: run(work.probe, work.models, data=work.data, options=options, watcher=progress),
            work.models,
            dataclasses.replace(work.options, out=out),
        )
        # None: the run inside was finished before; its folder has the sums.
        if result is None and out is not None:
            return dataclasses.replace(finished.read(out), runs={})
        assert result is not None
        return dataclasses.replace(
            self.measured, sums=result.sums, checkpoints=result.sidecar.checkpoints, units=work.units
        )


def _checkpoints_to_compare(
    models: Sequence[Model], options: Options, settings: Mapping[str, Any], gate: Gate
) -> Sources:
    """Return checkpoints with the work that measures them; raises ``UserError`` where something does not fit."""
    _check_two(models)  # before anything is loaded
    probe = to_compare(settings["probe"], view=settings["view"], severities=settings["severities"])
    gate.check_kind(probe)
    _check_outside(models, options.out)
    work = prepare(probe, models, data=settings["data"], options=options)
    from moeprobe.probes.engine.measurement import Measurement  # here, since it imports torch

    assert isinstance(work, Measurement)
    request = Request(work.request)
    checkpoints = request.pop("checkpoints")
    names = choose_names(options.names, [*checkpoints])
    return Sources(Measured(SumsStore(()), request, checkpoints, {}), names, work)


def runs_to_compare(models: Sequence[Model], options: Options, settings: Mapping[str, Any] = NONE) -> Sources:
    """Return finished runs, which fix all ``settings``: probe, data, view and severities (None = not named).

    Raises:
        UserError: a run cannot be read or fits no other, or something is named that they fix.
    """
    _check_outside(models, options.out)
    changed = [option(name) for name, value in settings.items() if value is not None]
    changed += [
        option(name, flag=flag_of(Options, name))
        for name in fields_of(Options)
        if arg_of(Options, name).in_request and getattr(options, name) != getattr(Options(), name)
    ]
    if changed:
        raise UserError(f"Finished runs fix these options; remove {', '.join(changed)}.")
    measured = finished.read_all([Path(str(path)) for path in models], with_units=options.unit is None)
    if options.unit is not None:
        units = units_of_inputs(options.unit, measured.sums.names())
        measured = dataclasses.replace(measured, units=units)
    if options.layers is not None:
        run_layers = measured.sums.layers
        if lacking := [layer for layer in options.layers if layer not in run_layers]:
            raise UserError(
                f"There is no MoE layer {lacking[0]!r} in these runs; there are: {', '.join(run_layers)}."
            )
        # The empty layer holds numbers of the whole model, such as accuracy.
        selected = measured.sums.select(lambda stored: stored.cell.layer in {*(options.layers or ()), ""})
        request = Request(measured.request | {"layers": list(options.layers)})
        measured = dataclasses.replace(measured, sums=selected, request=request)
    return Sources(measured, choose_names(options.names, [*measured.checkpoints]))


def _check_outside(models: Sequence[Model], out: Path | None) -> None:
    for item in models:
        # --overwrite would delete what is to be compared.
        if isinstance(item, str | Path) and out and resolve(Path(item)).is_relative_to(resolve(out)):
            raise UserError(f"{item} is in {out}; choose another {option('out')}.")


def _check_two(checkpoints: Sized) -> None:
    if len(checkpoints) < 2:
        raise UserError("A comparison needs at least two checkpoints, or finished runs that hold as many.")


class ComparisonWork(Work[Comparison]):
    """Judge the paired differences of checkpoints.

    Args:
        sources: the runs or checkpoints.
        options: where to, and how.
        margin: differences inside ± margin count as none.
        equivalent_within: the margin of equivalence; None = nothing is said of it.
        gate: which differences fail; None = none does.
        series: the looks that this comparison is one of; None = it is the only one.

    Raises:
        UserError: there are not two checkpoints, the gate's metric cannot become worse, or it is no look of the series.
    """

    def __init__(
        self,
        sources: Sources,
        options: Options,
        *,
        margin: float = words.MARGIN,
        equivalent_within: float | None = None,
        gate: Gate | None = None,
        series: LookSeries | None = None,
    ) -> None:
        self.sources, self.options, self.margin = sources, options, margin
        self.equivalent_within, self.gate = equivalent_within, gate or Gate(None)
        if self.gate.metric is not None:
            # Before measuring: hours of passes must not end with "no such metric".
            self.gate.check_measured(sources.sample())
        measured, keys = sources.measured, ("sha256", "capacity", "group_images")
        _check_two(measured.checkpoints)
        self.request = {
            "kind": "compare",
            "margin": margin,
            "probe": measured.request,
            "checkpoints": {
                name: {key: info.get(key) for key in keys} for name, info in measured.checkpoints.items()
            },
            "runs": sorted(measured.runs.values()),
        }
        if sources.pairs:
            self.request["pairs"] = [list(pair) for pair in sources.pairs]
        self.units = measured.units if sources.work is None else sources.work.units
        if self.units is not None:
            self.request |= self.units.request()
        # Judging one metric as one family widens its intervals, so it belongs to the request.
        if self.gate.metric is not None:
            self.request["judged_together"] = self.gate.metric
        self.look: Look | None = None
        if series is not None:
            self.request["looks"] = series.looks
            judged = self.request | {"equivalent_within": equivalent_within}
            self.look = Look.of(series, measured, judged, self.gate, is_finished=sources.work is None)

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Comparison:
        """Measure, and judge the differences."""
        measured = self.sources.measure(progress)
        table, over_trainings = self._differences(measured, progress)
        sentences = _verdicts(table, over_trainings, self.equivalent_within)
        failures = self.gate.failures(table)
        look = {} if self.look is None else {"look": self.look.take(measured, table, len(failures))}
        sidecar = self.make_sidecar(
            checkpoints=measured.checkpoints,
            colors=colors(list(measured.checkpoints)),
            runs=dict(measured.runs),
            verdicts=sentences.to_dict("records"),
            equivalent_within=self.equivalent_within,
            fail_if_worse=self.gate.metric,
            fail_unless_no_worse_than=self.gate.allowed,
            failures=len(failures),
            **look,
            wall_seconds=self.seconds,
            **self.sources.names,
        )
        return Comparison(table, sentences, failures, sidecar, over_trainings)

    def write(self, result: Comparison, folder: OutputFolder) -> Comparison:
        """Write the differences."""
        write_csv(folder.path / "comparison.csv", result.table)
        if self.units is not None:
            self.units.write(folder.path)
        if len(result.trainings):
            write_csv(folder.path / trainings.TRAININGS, result.trainings)
        return result

    def draw(self, result: Comparison, folder: OutputFolder, progress: Progress) -> None:
        """Write the forest plot."""
        from moeprobe.results.figures import save_all

        save_all(result.plot(), folder.path / "figures", svg=self.options.svg)

    def _differences(self, measured: Measured, progress: Progress) -> tuple[pd.DataFrame, pd.DataFrame]:
        groups, seeds = measured.training("group"), measured.training("seed")
        name, aligned = self.run_name, measured.is_aligned
        info = About.of_request(
            measured.request,
            run=name,
            aligned=aligned,
            train_seeds=seeds,
            groups=groups,
            units=self.units,
        )
        analyses = analyses_of(measured.request)
        sums = measured.sums.pool_draws(lists=trial_lists(analyses))
        progress.start("differences", sum(cell.num_images for cell in sums))
        by_hand = self.sources.pairs
        pairs = by_hand or differences.pairs(list(measured.checkpoints), groups=groups, seeds=seeds)
        table = differences.compare(
            sums,
            analyses=analyses,
            run_info=info,
            selected_pairs=pairs,
            margin=self.margin,
            together=self.gate.metric,
            looks=self.request.get("looks", 1),
            progress=progress.advance,
        )
        if table.empty:
            raise UserError(
                f"{', '.join(measured.checkpoints)} have no MoE layer in common in which the same was measured, so "
                "there is nothing to compare."
            )
        over_trainings = trainings.compare_trainings(
            sums,
            analyses=analyses,
            run_info=info,
            pairs=trainings.group_of_hand_pairs(by_hand, groups)
            if by_hand
            else trainings.groups_of_pairs(pairs, groups),
            margin=self.margin,
        )
        return table, over_trainings


def _verdicts(
    table: pd.DataFrame, over_trainings: pd.DataFrame, equivalent_within: float | None
) -> pd.DataFrame:
    """Return what families come to, claims about trainings first."""
    of_pairs = differences.sentences(table, equivalent_within=equivalent_within)
    if over_trainings.empty:
        return of_pairs
    return (
        pd.concat([trainings.sentences(over_trainings), of_pairs], ignore_index=True)
        .reindex(columns=[*of_pairs.columns, "trainings"])
        .replace({np.nan: None})
    )
