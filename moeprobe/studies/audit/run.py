"""Audit one or two models: plan, run the probes that join, judge their numbers, and write the page."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.errors import FinishedError, UserError
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.open import content_of
from moeprobe.probes.base import Property
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.models import are_hashed, load_models
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data, described
from moeprobe.results.finished import read_result
from moeprobe.results.folder import OutputFolder, Result, output_folder
from moeprobe.results.palette import colors
from moeprobe.results.provenance import provenance
from moeprobe.results.sidecars import Sidecar, read_sidecar
from moeprobe.runtime.arguments import checked, several
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.files import read_bytes, write_text
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.studies.audit import page
from moeprobe.studies.audit.differences import judge_run
from moeprobe.studies.audit.judge import COLUMNS, Row
from moeprobe.studies.audit.plan import AuditPlan, AuditStep, joining, make_plan, read_plan, write_plan
from moeprobe.studies.audit.recorded import RECORDED, audit_recordings, check_recordings, is_recorded
from moeprobe.studies.audit.result import VERDICTS, AuditContent, AuditResult, read_verdicts

KIND = "audit"
MINUTES = 5.0
_MOST_MODELS = 2
_LARGEST_PAGE = 2**30


@with_options
def audit(
    models: Models,
    *,
    data: str | None = None,
    minutes: float = MINUTES,
    probes: Sequence[str] | None = None,
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
        options: common options; ``changes`` are applied to them by name.
        watcher: receives the progress of the work.

    Raises:
        UserError: something named does not exist or does not fit, or nothing can be judged.
    """
    options, watcher = combine(options, changes), progress_of(watcher)
    sources = _check_sources(models, minutes)
    try:
        if is_recorded(sources):
            return _audit_recordings(sources, data=data, options=options, watcher=watcher)
        return _audit_models(
            sources, data=data, minutes=minutes, probes=probes, options=options, watcher=watcher
        )
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
        raise UserError("Recorded routing needs no forward passes; leave --dry-run out.")
    loaded = load_models(sources, options)
    return make_plan(loaded, data=choose_data(data, loaded), minutes=minutes, options=options, probes=probes)


@checked
def read_audit(folder: Path) -> AuditResult:
    """Read a finished audit from its folder.

    Raises:
        UserError: it is none, or its files cannot be read.
    """
    sidecar = read_sidecar(folder)
    if sidecar["request"].get("kind") != KIND:
        raise UserError(f"{folder} holds no audit; choose another --out.")
    runs = {name: read_result(folder / name) for name in sidecar["runs"]}
    return AuditResult(
        verdicts=read_verdicts(folder / VERDICTS),
        runs=runs,
        left_out=sidecar["left_out"],
        sidecar=sidecar,
        folder=folder,
        html=read_bytes(folder / page.HTML, limit=_LARGEST_PAGE).decode("utf-8"),
    )


def _check_sources(models: Models, minutes: float) -> list[Model]:
    sources: list[Model] = several(models)
    if not 1 <= len(sources) <= _MOST_MODELS:
        raise UserError(f"An audit is of one model, or of two; got {len(sources)}. Use compare for more.")
    if not 0 < minutes < float("inf"):
        raise UserError(f"--minutes takes a number above 0; got {minutes:g}.")
    return sources


def _audit_models(
    sources: Sequence[Model],
    *,
    data: str | None,
    minutes: float,
    probes: Sequence[str] | None,
    options: Options,
    watcher: Progress,
) -> AuditResult:
    started = time.perf_counter()
    models = load_models(sources, options)
    data = choose_data(data, models)
    request = _request(models, data=data, minutes=minutes, probes=probes, options=options)
    with output_folder(options.out, request, overwrite=options.overwrite, svg=options.svg) as folder:
        plan = _plan(models, folder, data=data, minutes=minutes, probes=probes, options=options)
        runs: dict[str, Result] = {}
        for step in plan.steps:
            result = _run(step, models, data=data, options=options, watcher=watcher)
            if isinstance(result, Result):
                runs[step.name] = result
        dataset = open_data(data, split=options.split)
        classes = len(dataset.class_names) if dataset.class_names else None
        words = " ".join(str(source.name if isinstance(source, Checkpoint) else source) for source in sources)
        rows = []
        for step in plan.steps:
            if step.name in runs:
                commands = {
                    item.name: _command(item, step.name, words, data) for item in step.entry.properties
                }
                rows += judge_run(
                    step.entry.properties, runs[step.name], run=step.name, classes=classes, commands=commands
                )
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": described(models, dataset, data, split=options.split),
            "colours": colors([model.name for model in models]),
            "runs": list(runs),
            "folders": [step.name for step in plan.steps],
            "images": {step.name: step.images for step in plan.steps},
            "left_out": dict(plan.left_out),
            "modality": models[0].framing.modality.name,
            "wall_seconds": time.perf_counter() - started,
        } | provenance()
        return _finish(rows, runs, plan.left_out, sidecar, folder)


def _audit_recordings(
    sources: Sequence[Model], *, data: str | None, options: Options, watcher: Progress
) -> AuditResult:
    paths = [Path(str(source)) for source in sources]
    check_recordings(paths, data=data)
    request = {"kind": KIND, "recordings": [str(path) for path in paths], "seed": options.seed}
    request |= {"layers": None if options.layers is None else list(options.layers)}
    request |= content_of(paths)
    with output_folder(options.out, request, overwrite=options.overwrite, svg=options.svg) as folder:
        result, rows, left_out = audit_recordings(paths, options=options, watcher=watcher)
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": result.sidecar["checkpoints"],
            "colours": result.sidecar.get("colours", {}),
            "runs": [RECORDED],
            "folders": [RECORDED],
            "images": {RECORDED: int(result.table["images"].max())},
            "left_out": left_out,
            "modality": "text",
            "wall_seconds": result.sidecar["wall_seconds"],
        } | provenance()
        return _finish(rows, {RECORDED: result}, left_out, sidecar, folder)


def _request(
    models: Sequence[Checkpoint], *, data: str, minutes: float, probes: Sequence[str] | None, options: Options
) -> dict[str, Any]:
    """Return everything that an audit depends on; sizes follow from a timing, and are in its plan."""
    return {
        "kind": KIND,
        "data": data,
        "minutes": minutes,
        "probes": None if probes is None else sorted(probes),
        "split": options.split,
        "layers": None if options.layers is None else list(options.layers),
        "limit": options.limit,
        "seed": options.seed,
        "trained_capacity": options.trained_capacity,
        "group_images": options.group_images,
        "skip_bad_images": options.skip_bad_images,
        "max_length": options.max_length,
        "checkpoints": {
            model.name: {key: model.provenance.get(key) for key in ("sha256", "capacity", "group_images")}
            for model in models
        },
    }


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
    plan = make_plan(models, data=data, minutes=minutes, options=options, probes=probes)
    if folder is not None:
        write_plan(folder.path, plan)
    return plan


def _run(
    step: AuditStep, models: Sequence[Checkpoint], *, data: str, options: Options, watcher: Progress
) -> object:
    """Return the result of a probe: run, or read from its folder where an earlier call has finished it."""
    out = None if options.out is None else options.out / step.name
    of_step = dataclasses.replace(options, out=out, limit=step.images, overwrite=False)
    try:
        return engine.run(step.probe, models, data=data, options=of_step, watcher=watcher)
    except FinishedError as error:
        if are_hashed(models):
            return read_result(error.folder) if step.entry.properties else None
    of_step = dataclasses.replace(of_step, overwrite=True)
    return engine.run(step.probe, models, data=data, options=of_step, watcher=watcher)


def _command(item: Property, name: str, words: str, data: str) -> str:
    """Return the command that gives more about a property."""
    command = item.command or f"moeprobe {name} {{models}}"
    return f"{command.format(models=words)} --data {data}"


def audit_runs(
    folders: Mapping[str, Path], *, models: Sequence[str], out: Path, data: str, command: str = ""
) -> AuditResult:
    """Judge finished runs of one or two models in place of running them; the page is written into a plain folder.

    Args:
        folders: command of a probe -> its finished run, a folder in ``out``.
        models: what commands call the models.
        out: where ``verdicts.csv``, ``audit.html`` and ``audit.md`` go; earlier ones are replaced.
        data: data set of the runs.
        command: what was typed, for the page.

    Raises:
        UserError: a run cannot be read, or nothing of it can be judged.
    """
    started = time.perf_counter()
    steps = [(kind.name, entry) for kind, entry in joining(None) if kind.name in folders]
    runs = {name: read_result(folders[name]) for name, entry in steps if entry.properties}
    split = str(next(iter(runs.values())).sidecar["request"]["split"]) if runs else ""
    class_names = open_data(data, split=split).class_names if runs else None
    rows: list[Row] = []
    for name, entry in steps:
        if name in runs:
            words = {item.name: _command(item, name, " ".join(models), data) for item in entry.properties}
            result = _at_severities(runs[name], entry.images)
            classes = len(class_names) if class_names else None
            rows += judge_run(entry.properties, result, run=name, classes=classes, commands=words)
    first = next(iter(runs.values()))
    sidecar = {
        "request": {"kind": KIND, "data": data, "split": split},
        "command": command,
        "checkpoints": first.sidecar["checkpoints"],
        "colours": first.sidecar["colours"],
        "runs": list(runs),
        "folders": [name for name, _ in steps],
        "images": {name: int(result.table["images"].max()) for name, result in runs.items()},
        "left_out": {},
        "modality": IMAGE.name,
        "wall_seconds": time.perf_counter() - started,
    }
    audited = _result(rows, runs, {}, sidecar, out)
    _write(audited)
    return audited


def _at_severities(result: Result, fields: Mapping[str, Any] | None) -> Result:
    """Return a sweep with no steps beyond those of an audit, which judges the strongest."""
    steps = (fields or {}).get("severities")
    if steps is None:
        return result
    severity = result.table["severity"]
    return dataclasses.replace(result, table=result.table[severity.isna() | (severity <= max(steps))])


def _finish(
    rows: Sequence[Row],
    runs: Mapping[str, Result],
    left_out: Mapping[str, str],
    sidecar: dict[str, Any],
    folder: OutputFolder | None,
) -> AuditResult:
    """Write the verdicts and the page, and mark the folder as finished."""
    result = _result(rows, runs, left_out, sidecar, None if folder is None else folder.path)
    if folder is not None:
        _write(result)
        folder.finish(sidecar)
    return result


def _result(
    rows: Sequence[Row],
    runs: Mapping[str, Result],
    left_out: Mapping[str, str],
    sidecar: dict[str, Any],
    folder: Path | None,
) -> AuditResult:
    """Return the verdicts with their page; raises ``UserError`` where there is none."""
    if not rows:
        raise UserError("Nothing of the routing could be judged; choose other --probes.")
    content = AuditContent(
        verdicts=pd.DataFrame(rows, columns=COLUMNS),
        runs=runs,
        left_out=left_out,
        sidecar=Sidecar(sidecar),
        folder=folder,
    )
    return AuditResult(**vars(content), html=page.page_html(content))


def _write(result: AuditResult) -> None:
    """Write the verdicts and the page, which comes last: it is what is opened and sent."""
    folder = result.folder
    if folder is not None:
        write_csv(folder / VERDICTS, result.verdicts)
        write_text(folder / page.MARKDOWN, page.page_markdown(result))
        write_text(folder / page.HTML, result.html)
