"""An audit of recorded routing, without the model: is the recording sound, how is the load, do two recordings agree?"""

import math
from collections.abc import Sequence
from pathlib import Path

from moeprobe.adapters.base import Model
from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.options import Options
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.judging.properties import COLUMNS, Row, judge_run
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.recordings.check_trace import INCOMPLETE, CheckedTrace, check_trace
from moeprobe.recordings.matching import NAMES, check_match
from moeprobe.recordings.trace_paths import is_trace_path
from moeprobe.results.finished import read_result
from moeprobe.results.folder import Result
from moeprobe.runtime.files import resolve
from moeprobe.runtime.progress import Progress

RECORDED = AnalyzeTrace.kind
_TEXTS = ("reference", "judgement", "symbol", "metric", "null", "view", "of_layers")
_WITHOUT_MODEL = "Recorded routing has no model to run again."


def is_recorded(sources: Sequence[Model]) -> bool:
    """Whether the audited items are recorded routing.

    Raises:
        UserError: some are and some are not.
    """
    are_recordings = [isinstance(source, str | Path) and is_trace_path(source) for source in sources]
    if any(are_recordings) and not all(are_recordings):
        raise UserError("One is a recording and one a model; audit two recordings, or two models.")
    return all(are_recordings)


def check_recordings(paths: Sequence[Path], *, data: str | None, match: str) -> None:
    """Raise ``UserError`` where data are named, which a recording has already, or one file twice, or no such match."""
    check_match(match)
    if data is not None:
        raise UserError(f"A recording has its own inputs; leave {option('data')} out.")
    if len({resolve(path) for path in paths}) < len(paths):
        raise UserError(f"{paths[0]} was named twice; give another recording.")


def check_models(match: str) -> None:
    """Raise ``UserError`` where models are to be matched otherwise than by names: they get the same inputs."""
    check_match(match)
    if match != NAMES:
        raise UserError(f"{option('match')} pairs the inputs of two recordings; leave it out for models.")


def audit_recordings(
    paths: Sequence[Path], *, match: str, options: Options, watcher: Progress
) -> tuple[Result, list[Row], dict[str, str]]:
    """Return the tables of recordings, the verdicts on their soundness, and the omissions.

    ``match``: as in ``analyze_trace``.
    """
    checked = [check_trace(path, watcher=watcher) for path in paths]
    out = None if options.out is None else options.out / RECORDED
    of_run = Options(
        layers=options.layers, seed=options.seed, out=out, figures=options.figures, svg=options.svg,
        command=options.command,
    )  # fmt: skip
    try:
        result = AnalyzeTrace(traces=list(paths), match=match).ask(of_run, watcher)
    except FinishedError as error:
        result = read_result(error.folder)
    names = list(dict.fromkeys(result.table["checkpoint"]))
    # Recordings of one model are told from each other by their views; the faulty one speaks for both.
    if len(names) < len(checked):
        checked.sort(key=lambda trace: trace.sound)
    rows = [_recording_row(name, trace) for name, trace in zip(names, checked, strict=False)]
    rows += _judge(paths, result, match=match)
    left_out = {
        "crops, noise, precision, batches": _WITHOUT_MODEL,
        "accuracy": "A recording holds choices of experts, and no answers.",
    }
    if len(paths) == 1:
        left_out["agreement"] = "There is one recording; add another of the same inputs."
    return result, rows, left_out


def _recording_row(name: str, trace: CheckedTrace) -> Row:
    """Return the verdict on a recording as a row with ``COLUMNS``."""
    faults = [finding for finding in trace.findings if finding.fault]
    notes = [finding.name for finding in trace.findings if not finding.fault]
    verdict = ", ".join(finding.name for finding in faults)
    if not faults:
        verdict = "no known fault, but incomplete" if INCOMPLETE in notes else "no known fault"
    row: Row = {column: "" if column in _TEXTS else math.nan for column in COLUMNS}
    return row | {
        "property": "recording",
        "title": "Faults of the recording",
        "checkpoint": name,
        "verdict": verdict,
        "grade": "poor" if faults else "fair" if INCOMPLETE in notes else "good",
        "layer": "",
        "images": trace.inputs,
        "trials": trace.inputs,
        "experts": 0,
        "layers": 0,
        "first_layer": "",
        "beside": f"notes: {', '.join(dict.fromkeys(notes))}" if notes else "",
        "advice": "Mend the capture first: the numbers below are about it, not about routers."
        if faults
        else "",
        "command": f"moeprobe trace check {trace.path}",
        "run": RECORDED,
    }


def _judge(paths: Sequence[Path], result: Result, *, match: str) -> list[Row]:
    """Return the verdicts on the properties that ``analyze-trace`` declares."""
    entry = audit_entry(AnalyzeTrace)
    properties = entry.properties if entry else ()
    words = " ".join(map(str, paths))
    # The command must pair the inputs as this audit did.
    matching = f" --match {match}" if match != NAMES and len(paths) > 1 else ""
    commands = {
        item.name: item.command.format(models=words, first=paths[0], second=paths[-1]) + matching
        for item in properties
    }
    names = list(dict.fromkeys(result.table["checkpoint"]))
    return judge_run(properties, result, run=RECORDED, classes=None, commands=commands, models=names)
