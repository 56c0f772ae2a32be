"""Align the experts of recorded routing: of files of two models, servers or checkpoints, without the models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from moeprobe.errors import UserError
from moeprobe.probes.align import TO_ALIGN, Align
from moeprobe.probes.align.measure import AlignedTrainings, RecordedTraining, align_trainings
from moeprobe.probes.analyze_trace.describe import facts_of, request_of
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import TableWork
from moeprobe.recordings.matching import NAMES, check_match, match_traces
from moeprobe.recordings.pairs import NamedTrace, check_tokens, common_ids, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import NAMES as CHOSEN
from moeprobe.results.sidecars import choose_names
from moeprobe.runtime.arguments import check_two, several
from moeprobe.runtime.progress import Progress, progress_of


@with_options
def align_traces(
    paths: str | Path | Sequence[str | Path],
    *,
    permutations: int = Align.permutations,
    match: str = NAMES,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Align the experts of recorded routing by the tokens that they have in common, and measure how far they agree.

    Args:
        paths: two traces or more, of the same inputs.
        permutations: random orders of the inputs, which show how well unrelated routing can be aligned.
        match: as in ``analyze_trace``.
        options: as in ``analyze_trace``.
        watcher: receives the progress of the run.

    Raises:
        UserError: there is one trace, a file is damaged or no trace, or they cannot be compared.
    """
    work = _RecordedAlignment(
        [Path(path) for path in several(paths)],
        probe=Align(permutations=permutations),
        match=match,
        options=combine(options, changes),
    )
    return work.execute(progress_of(watcher))


class _RecordedAlignment(TableWork[Result]):
    """Recorded routing of the same inputs, compared pair by pair."""

    def __init__(self, paths: Sequence[Path], *, probe: Align, match: str, options: Options) -> None:
        self.probe, self.options = probe, options
        check_match(match)
        check_two(paths, TO_ALIGN)
        matched, self.matching = match_traces([TraceFile(path) for path in paths], match)
        traces = name_all(matched)
        for trace_view in traces:
            if trace_view.has_moved:
                raise UserError(f"{trace_view.trace.path} is of moved views; record both on the same inputs.")
            check_tokens(trace_view.trace, purpose="to align experts by")
        labels = _labels(traces)
        names = choose_names(options.names, labels).get(CHOSEN, {})
        self.traces, self._names = traces, [names.get(label, label) for label in labels]
        layers = common_layers(matched, options.layers, mapped=True)
        request = request_of(traces, common_ids(matched, layers), options)
        trainings = request.pop("checkpoints")
        self.request = request | {
            "kind": probe.kind, "view": {"name": probe.name}, "analyses": list(probe.analyses), "severities": [],
            "aligned": True, "permutations": probe.permutations, "trainings": trainings, "called": self._names,
        } | ({"match": match} if match != NAMES else {})  # fmt: skip

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Align each pair, and put the tables together."""
        trainings = [
            RecordedTraining(name, trace_view.trace.about["checkpoint"].get("group") or "", trace_view.trace)
            for name, trace_view in zip(self._names, self.traces, strict=True)
        ]
        facts = facts_of(self.traces)
        aligned = AlignedTrainings(
            trainings,
            layers=self.options.layers,
            permutations=self.probe.permutations,
            seed=self.options.seed,
        )
        return align_trainings(
            self,
            self.probe,
            aligned,
            progress,
            trainings=facts["checkpoints"],
            traces=facts["traces"],
            skipped_images=facts["skipped_images"],
            notes=self.matching,
            device=facts["device"],
        )


def _labels(traces: Sequence[NamedTrace]) -> list[str]:
    """Return what tables call the traces: their checkpoints; where two are of one, with the view."""
    names = [trace_view.name for trace_view in traces]
    return names if len({*names}) == len(names) else [trace_view.label for trace_view in traces]
