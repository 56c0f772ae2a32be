"""Measure the drift of recorded routing: each trace of a series against the first and against the last."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from moeprobe.errors import UserError
from moeprobe.judging.summarize import summarize
from moeprobe.probes.analyze_trace.describe import facts_of, ignored_tokens, notes_of, request_of
from moeprobe.probes.analyze_trace.measure import Measuring
from moeprobe.probes.base import deferred
from moeprobe.probes.drift import STEPS, Drift
from moeprobe.probes.drift.sentences import FIRST, LAST, steps_of, view_of
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import TableWork
from moeprobe.recordings.matching import NAMES, check_match, match_traces
from moeprobe.recordings.pairs import NamedTrace, check_tokens, common_ids, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.stored import concat
from moeprobe.runtime.arguments import check_two, several
from moeprobe.runtime.files import shortest_ends
from moeprobe.runtime.progress import Progress, progress_of


@with_options
def drift(
    paths: str | Path | Sequence[str | Path],
    *,
    match: str = NAMES,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how far the routing of a training's checkpoints is from the first and the last one.

    Args:
        paths: traces of the same inputs, in the order of the training. Its steps are the numbers in their names, where
            these grow.
        match: as in ``analyze_trace``.
        options: only ``layers``, ``seed`` (of the intervals), ``out``, ``overwrite``, ``figures`` and ``svg``;
            ``changes`` are applied to them by name.
        watcher: receives the progress of the run.

    Raises:
        UserError: there are fewer than two, a file is damaged or no trace, or they cannot be compared.
    """
    check_match(match)
    traces = [TraceFile(Path(path)) for path in several(paths)]
    work = _Series(traces, match=match, options=combine(options, changes))
    return work.execute(progress_of(watcher))


class _Series(TableWork[Result]):
    """Traces of a training, each compared with the first and with the last."""

    def __init__(self, traces: Sequence[TraceFile], *, match: str, options: Options) -> None:
        check_two(traces, STEPS)
        traces, self.matching = match_traces(traces, match)
        self.traces, self.options = traces, options
        if any(named.has_moved for named in name_all(traces)):
            raise UserError("The traces are of moved views; record the checkpoints on the same inputs.")
        for trace in traces:
            check_tokens(trace, purpose="that could agree")
        labels = shortest_ends([trace.path.resolve().with_suffix("") for trace in traces])
        self.layers = common_layers(traces, options.layers)
        self.ids = common_ids(traces, self.layers)
        self.since, self.until = (
            _compared_with(traces, labels, 0, FIRST),
            _compared_with(traces, labels, -1, LAST),
        )
        numbers = steps_of(labels)
        self.numbered = numbers is not None
        self.steps = dict(zip(labels, numbers or map(float, range(len(labels))), strict=True))
        self.request = request_of([*self.since, *self.until], self.ids, options) | {
            "kind": Drift.kind, "view": {"name": Drift.name}, "analyses": list(Drift.analyses),
            "steps": self.steps, "severities": [], "aligned": True,
        } | ({"match": match} if match != NAMES else {})  # fmt: skip

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the traces, and put the tables together."""
        layers, ids, since, until = self.layers, self.ids, self.since, self.until
        progress.start(Drift.kind, 2 * len(ids))
        measured = [Measuring(series, layers, ids, alone=False) for series in (since, until)]
        sums = concat(series.sums(progress) for series in measured)
        if sums.num_rows == 0:
            raise UserError(
                f"Nothing can be said of {', '.join(layers)}: there is one expert, or all are chosen."
            )
        name, provenance = since[0].name, self.traces[0].about["checkpoint"]
        info = self.run_info(
            aligned=True,
            train_seeds={name: provenance.get("seed")},
            groups={name: provenance.get("group") or ""},
        )
        table, comparison = summarize(sums, analyses=make_analyses(Drift.analyses), run_info=info)
        notes = notes_of(since, layers, ids)
        ignored = [
            phrase
            for series, measuring in zip((since, until), measured, strict=True)
            for phrase in ignored_tokens(series, measuring.left_out)
        ]
        sidecar = self.make_sidecar(
            notes=notes + self.matching,
            ignored=list(dict.fromkeys(ignored)),
            wall_seconds=self.seconds,
            **facts_of([*since, *until]),
        )
        leading = partial(leading_sentences, layout=Drift.layout)
        draw = deferred("moeprobe.probes.drift.figure:draw")
        drawing = partial(draw, steps=self.steps, numbered=self.numbered)
        return Result(table, comparison, sums, sidecar, drawing, leading)


def _compared_with(
    traces: Sequence[TraceFile], labels: Sequence[str], index: int, reference: str
) -> list[NamedTrace]:
    """Return the reference, then the other traces, each named after its reference."""
    names = {trace.about["checkpoint"]["name"] for trace in traces}
    name = names.pop() if len(names) == 1 else "series"
    named_traces = [
        NamedTrace(trace, name, view_of(label, reference), float("nan"), has_moved=False)
        for trace, label in zip(traces, labels, strict=True)
    ]
    reference_trace = named_traces.pop(index)
    return [reference_trace, *named_traces]
