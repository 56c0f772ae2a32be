"""The work of ``trace align``: align the experts of recordings, as ``align`` does with models."""

from collections.abc import Sequence
from pathlib import Path

from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.probes.align import Align
from moeprobe.probes.align.measure import AlignedTrainings, RecordedTraining, align_trainings
from moeprobe.recorded.align_traces import AlignTraces
from moeprobe.recorded.engine.describe import facts_of, request_of
from moeprobe.recorded.engine.work import RecordingWork
from moeprobe.recordings.matching import match_traces
from moeprobe.recordings.pairs import NamedTrace, check_tokens, common_ids, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import NAMES as CHOSEN
from moeprobe.results.sidecars import choose_names
from moeprobe.runtime.progress import Progress


class RecordedAlignment(RecordingWork[AlignTraces]):
    """Recorded routing of the same inputs, compared pair by pair."""

    def __init__(self, probe: AlignTraces, options: Options) -> None:
        super().__init__(probe, options)
        matched, self.matching = match_traces([TraceFile(Path(path)) for path in probe.traces], probe.match)
        traces = name_all(matched)
        for trace_view in traces:
            if trace_view.has_moved:
                raise UserError(f"{trace_view.trace.path} is of moved views; record both on the same inputs.")
            check_tokens(trace_view.trace, purpose="to align experts by")
        labels = _labels(traces)
        names = choose_names(options.names, labels).get(CHOSEN, {})
        self.traces, self._names = traces, [names.get(label, label) for label in labels]
        layers = common_layers(matched, options.layers, mapped=True)
        request = request_of(probe, traces, common_ids(matched, layers), options)
        self.request = request | {
            "view": {"name": Align.name}, "severities": [], "aligned": True, "permutations": probe.permutations,
            "trainings": request.pop("checkpoints"), "called": self._names,
        }  # fmt: skip

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
