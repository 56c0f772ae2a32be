"""Audit one or two models: plan, run the probes that join, judge their numbers, and write the page."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.declarations import AuditEntry, Property
from moeprobe.declarations.options import Keywords, Options, combine, with_options
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.modality import IMAGE, Modality, modality_of
from moeprobe.inputs.open import content_of
from moeprobe.judging.properties import COLUMNS, Row, judge_run
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.models import are_hashed
from moeprobe.probes.engine.origins import choose_data, describe_origins
from moeprobe.probes.engine.run import Work
from moeprobe.probes.engine.run_spec import study_request
from moeprobe.probes.engine.units import refuse_units
from moeprobe.recordings.matching import NAMES
from moeprobe.recordings.trace_paths import find_parts
from moeprobe.results.caveats import ROUTERS
from moeprobe.results.finished import read_result
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.sidecars import NAMES as NAMES_CHOSEN
from moeprobe.results.sidecars import Sidecar, choose_names, make_sidecar
from moeprobe.runtime.arguments import check_positive, several
from moeprobe.runtime.files import write_csv, write_text
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.studies.audit.plan import (
    AuditPlan,
    AuditStep,
    joining,
    make_plan,
    open_models,
    read_plan,
    write_plan,
)
from moeprobe.studies.audit.recorded import (
    RECORDED,
    audit_recordings,
    check_models,
    check_recordings,
    is_recorded,
)
from moeprobe.studies.audit.result import (
    HTML,
    KIND,
    MARKDOWN,
    VERDICTS,
    AuditContent,
    AuditResult,
    page_html,
    page_markdown,
    read_audit,
)

MINUTES = 5.0
_MOST_MODELS = 2
_NOTHING = f"Nothing of the routing could be judged; choose other {option('probes')}."


@with_options
def audit(
    models: Models,
    *,
    data: str | None = None,
    minutes: float = MINUTES,
    probes: Sequence[str] | None = None,
    match: str = NAMES,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> AuditResult:
    """Judge whether the routing of a model can be trusted, and of two models which is better.

    With an output folder every probe has a run folder in it, next to ``verdicts.csv``, ``audit.html`` and
    ``audit.md``. An interrupted audit resumes; of a finished one the verdicts are read.

    Args:
        models: one or two checkpoints, loaded or by path; or one or two files of recorded routing.
        data: data set; None = the one that the checkpoints were trained on.
        minutes: how long it may take; decides how many images, and which probes, are run.
        probes: commands of the probes to run; None = all that join an audit.
        match: of two recordings, as in ``analyze_trace``.
        options: common options; ``changes`` are applied to them by name.
        watcher: receives the progress of the work.

    Raises:
        UserError: something named does not exist or does not fit, or nothing can be judged.
    """
    options, watcher = combine(options, changes), progress_of(watcher)
    sources = _check_sources(models, minutes)
    work: _AuditWork
    # Recordings need no model, and so no plan and no timing.
    if is_recorded(sources):
        work = _RecordingsAudit(sources, data=data, match=match, options=options)
    else:
        check_models(match)
        work = _ModelsAudit(sources, data=data, minutes=minutes, probes=probes, options=options)
    try:
        return work.execute(watcher)
    except FinishedError as error:
        if not are_hashed([source for source in sources if isinstance(source, Checkpoint)]):
            raise  # nobody knows whether it is of these models
        return read_audit(error.folder)


@with_options
def plan_audit(
    models: Models,
    *,
    data: str | None = None,
    minutes: float = MINUTES,
    probes: Sequence[str] | None = None,
    options: Options | None = None,
    **changes: Unpack[Keywords],
) -> AuditPlan:
    """Say what an audit would run, by running a few images through every probe; nothing is written.

    Raises:
        UserError: something named does not exist or does not fit, or recordings are given, which need no plan.
    """
    options = combine(options, changes)
    sources = _check_sources(models, minutes)
    if is_recorded(sources):
        raise UserError(f"Recorded routing needs no forward passes; leave {option('dry_run')} out.")
    loaded = open_models(sources, data=data, probes=probes, options=options)
    return _plan_of(loaded, data=choose_data(data, loaded), minutes=minutes, options=options, probes=probes)


def _check_sources(models: Models, minutes: float) -> list[Model]:
    sources: list[Model] = several(models)
    if not 1 <= len(sources) <= _MOST_MODELS:
        raise UserError(f"An audit is of one model, or of two; got {len(sources)}. Use compare for more.")
    check_positive("minutes", minutes)
    return sources


class _AuditWork(Work[AuditResult]):
    """An audit, whose runs have folders inside; a kind of audit says how its verdicts come about."""

    def write(self, result: AuditResult, folder: OutputFolder) -> AuditResult:
        """Write the verdicts and the page."""
        _write(result)
        return result


class _ModelsAudit(_AuditWork):
    """Run the probes that join, and judge their numbers."""

    def __init__(
        self,
        sources: Sequence[Model],
        *,
        data: str | None,
        minutes: float,
        probes: Sequence[str] | None,
        options: Options,
    ) -> None:
        self.models = open_models(sources, data=data, probes=probes, options=options)
        self.data = choose_data(data, self.models)
        self.words = " ".join(
            str(source.name if isinstance(source, Checkpoint) else source) for source in sources
        )
        self.minutes, self.probes, self.options = minutes, probes, options
        self.names = choose_names(options.names, [model.name for model in self.models])
        # Sizes follow from a timing, and are in the plan.
        self.request = study_request(
            KIND,
            self.models,
            options,
            data=self.data,
            minutes=minutes,
            probes=None if probes is None else sorted(probes),
            max_length=options.max_length,
        )

    def compute(self, folder: OutputFolder | None, progress: Progress) -> AuditResult:
        """Run the probes, or read what an earlier call has finished."""
        models, options = self.models, self.options
        # An interrupted audit keeps its plan: other sizes would not match its finished runs.
        plan = _plan(
            models, folder, data=self.data, minutes=self.minutes, probes=self.probes, options=options
        )
        runs: dict[str, Result] = {}
        for step in plan.steps:
            result = _run(step, models, data=self.data, options=options, watcher=progress)
            # Probes that only draw have no numbers to judge.
            if isinstance(result, Result):
                runs[step.name] = result
        dataset = open_data(self.data, split=options.split)
        rows = _judge(
            [(step.name, step.entry) for step in plan.steps],
            runs,
            models=[model.name for model in models],
            words=self.words,
            data=self.data,
            class_names=dataset.class_names,
        )
        sidecar = self.make_sidecar(
            checkpoints=_with_routers(
                describe_origins(models, dataset, self.data, split=options.split), runs.values()
            ),
            colors=colors([model.name for model in models]),
            runs=list(runs),
            folders=[step.name for step in plan.steps],
            images={step.name: step.images for step in plan.steps},
            left_out=dict(plan.left_out),
            modality=models[0].framing.modality.name,
            wall_seconds=self.seconds,
            **self.names,
        )
        return _result(rows, runs, plan.left_out, sidecar, None if folder is None else folder.path)


class _RecordingsAudit(_AuditWork):
    """Judge recorded routing, without a model."""

    def __init__(self, sources: Sequence[Model], *, data: str | None, match: str, options: Options) -> None:
        self.paths, self.options = [Path(str(source)) for source in sources], options
        self.match = match
        refuse_units(options, "audit")
        check_recordings(self.paths, data=data, match=match)
        if options.names is not None:
            raise UserError(f"Recorded routing is called by its files; leave {option('names')} out.")
        self.request = {
            "kind": KIND,
            "recordings": [str(path) for path in self.paths],
            "seed": options.seed,
            "layers": None if options.layers is None else list(options.layers),
            **content_of([part for path in self.paths for part in find_parts(path)]),
            **({"match": match} if match != NAMES else {}),
        }

    def compute(self, folder: OutputFolder | None, progress: Progress) -> AuditResult:
        """Check the recordings, and measure what they hold."""
        result, rows, left_out = audit_recordings(
            self.paths, match=self.match, options=self.options, watcher=progress
        )
        sidecar = self.make_sidecar(
            checkpoints=result.sidecar.checkpoints,
            colors=result.sidecar.colors,
            runs=[RECORDED],
            folders=[RECORDED],
            images={RECORDED: int(result.table["images"].max())},
            left_out=left_out,
            modality=modality_of(result.table["tokens"], data=result.sidecar.request.data).name,
            wall_seconds=self.seconds,
        )
        return _result(rows, {RECORDED: result}, left_out, sidecar, None if folder is None else folder.path)


def _with_routers(
    checkpoints: Mapping[str, dict[str, Any]], runs: Iterable[Result]
) -> dict[str, dict[str, Any]]:
    """Return what a sidecar says of checkpoints, with the sizes of their routers as a run found them."""
    sizes = {
        # Runs know the sizes of routers, which checkpoints alone do not say.
        name: {ROUTERS: info[ROUTERS]}
        for run in runs
        for name, info in run.sidecar.checkpoints.items()
        if ROUTERS in info
    }
    return {name: info | sizes.get(name, {}) for name, info in checkpoints.items()}


def _plan(
    models: Sequence[Checkpoint],
    folder: OutputFolder | None,
    *,
    data: str,
    minutes: float,
    probes: Sequence[str] | None,
    options: Options,
) -> AuditPlan:
    """Return the plan of an interrupted audit, or a new one, which is written before anything is run."""
    if folder is not None:
        modality = models[0].framing.modality.name
        earlier = read_plan(folder.path, modality=modality, minutes=minutes)
        if earlier is not None:
            return earlier
    plan = _plan_of(models, data=data, minutes=minutes, options=options, probes=probes)
    if folder is not None:
        write_plan(folder.path, plan)
    return plan


def _plan_of(models: Sequence[Checkpoint], *, options: Options, **settings: Any) -> AuditPlan:
    """Return a new plan, whose sentences call the models as the user does."""
    names = choose_names(options.names, [model.name for model in models]).get(NAMES_CHOSEN, {})
    renamed = [dataclasses.replace(model, name=names.get(model.name, model.name)) for model in models]
    return make_plan(renamed, options=dataclasses.replace(options, names=None), **settings)


def _run(
    step: AuditStep, models: Sequence[Checkpoint], *, data: str, options: Options, watcher: Progress
) -> object:
    """Return the result of a probe: run, or read from its folder where an earlier call has finished it."""
    out = None if options.out is None else options.out / step.name
    result = engine.run_once(
        lambda options: engine.run(step.probe, models, data=data, options=options, watcher=watcher),
        models,
        dataclasses.replace(options, out=out, limit=step.images),
    )
    # Runs without properties are not judged, so they need not be read back.
    return read_result(out) if result is None and out is not None and step.entry.properties else result


def _judge(
    steps: Iterable[tuple[str, AuditEntry]],
    runs: Mapping[str, Result],
    *,
    models: Sequence[str],
    words: str,
    data: str,
    class_names: Sequence[str] | None,
) -> list[Row]:
    """Return the verdicts on all runs; ``words`` is how commands name the models."""
    rows: list[Row] = []
    for name, entry in steps:
        if name in runs:
            rows += judge_run(
                entry.properties,
                runs[name],
                run=name,
                classes=len(class_names) if class_names else None,
                commands={
                    item.name: _command(item, name, words, data, modality_of(runs[name].table["tokens"]))
                    for item in entry.properties
                },
                models=models,
            )
    return rows


def _command(item: Property, name: str, words: str, data: str, modality: Modality) -> str:
    # Some commands differ for texts.
    declared = item.command if modality is IMAGE else item.text_command or item.command
    command = declared or f"moeprobe {name} {{models}}"
    return f"{command.format(models=words)} --data {data}"


def audit_runs(
    folders: Mapping[str, Path],
    *,
    models: Sequence[str],
    out: Path,
    data: str,
    names: Sequence[str] | None = None,
    command: str = "",
) -> AuditResult:
    """Judge finished runs of one or two models in place of running them; the page is written into a plain folder.

    Args:
        folders: command of a probe -> its finished run, a folder in ``out``.
        models: what commands call the models.
        out: where ``verdicts.csv``, ``audit.html`` and ``audit.md`` go; earlier ones are replaced.
        data: data set of the runs.
        names: what the page calls the models; None = by their folders.
        command: the typed command, for the page.

    Raises:
        UserError: a run cannot be read, or nothing of it can be judged.
    """
    started = time.perf_counter()
    steps = [(kind.name, entry) for kind, entry in joining(None) if kind.name in folders]
    runs = {name: read_result(folders[name]) for name, entry in steps if entry.properties}
    if not runs:
        raise UserError(_NOTHING)
    first = next(iter(runs.values())).sidecar
    rows = _judge(
        steps,
        {name: _at_severities(runs[name], entry.images) for name, entry in steps if name in runs},
        models=list(first.checkpoints),
        words=" ".join(models),
        data=data,
        class_names=open_data(data, split=first.request["split"]).class_names,
    )
    sidecar = make_sidecar(
        {"kind": KIND, "data": data, "split": first.request["split"]},
        command=command,
        checkpoints=first.checkpoints,
        colors=first.colors,
        runs=list(runs),
        folders=[name for name, _ in steps],
        images={name: int(result.table["images"].max()) for name, result in runs.items()},
        left_out={},
        modality=IMAGE.name,
        wall_seconds=time.perf_counter() - started,
        **choose_names(names, list(first.checkpoints)),
    )
    audited = _result(rows, runs, {}, sidecar, out)
    _write(audited)
    return audited


def _at_severities(result: Result, fields: Mapping[str, Any] | None) -> Result:
    """Return a sweep with no steps beyond the steps of an audit, which judges the strongest."""
    steps = (fields or {}).get("severities")
    if steps is None:
        return result
    severity = result.table["severity"]
    return dataclasses.replace(result, table=result.table[severity.isna() | (severity <= max(steps))])


def _result(
    rows: Sequence[Row],
    runs: Mapping[str, Result],
    left_out: Mapping[str, str],
    sidecar: Sidecar,
    folder: Path | None,
) -> AuditResult:
    """Return the verdicts with their page; raises ``UserError`` where there is none."""
    if not rows:
        raise UserError(_NOTHING)
    content = AuditContent(
        verdicts=pd.DataFrame(rows, columns=COLUMNS),
        runs=runs,
        left_out=left_out,
        sidecar=sidecar,
        folder=folder,
    )
    return AuditResult(**vars(content), html=page_html(content))


def _write(result: AuditResult) -> None:
    """Write the verdicts and then the page, which people open and send."""
    folder = result.folder
    if folder is not None:
        write_csv(folder / VERDICTS, result.verdicts)
        write_text(folder / MARKDOWN, page_markdown(result))
        write_text(folder / HTML, result.html)
