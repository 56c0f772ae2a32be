"""The work of ``trace drift``: each trace of a series against the first and against the last."""

from collections.abc import Sequence
from typing import Any

from moeprobe.errors import UserError
from moeprobe.recorded.drift import Drift
from moeprobe.recorded.drift.sentences import FIRST, LAST, steps_of, view_of
from moeprobe.recorded.engine.describe import ignored_tokens, notes_of
from moeprobe.recorded.engine.paired_sums import PairedSums
from moeprobe.recorded.engine.work import TracesWork
from moeprobe.recordings.pairs import NamedTrace, check_tokens, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.stored import SumsStore, concat
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.short_paths import shortest_ends


class Series(TracesWork[Drift]):
    """Traces of a training, each compared with the first and with the last."""

    def name_traces(self, files: Sequence[TraceFile]) -> list[NamedTrace]:
        """Return the traces twice, each named after what it is compared with."""
        if any(trace_view.has_moved for trace_view in name_all(files)):
            raise UserError("The traces are of moved views; record the checkpoints on the same inputs.")
        for trace in files:
            check_tokens(trace, purpose="that could agree")
        labels = shortest_ends([trace.unsuffixed_path for trace in files])
        self.series = [_compared_with(files, labels, 0, FIRST), _compared_with(files, labels, -1, LAST)]
        self.steps = dict(zip(labels, steps_of(labels) or map(float, range(len(labels))), strict=True))
        return [*self.series[0], *self.series[1]]

    def changed_request(self) -> dict[str, Any]:
        """Return the steps of the training in place of views."""
        return {"view": {"name": self.probe.name}, "steps": self.steps, "severities": [], "aligned": True}

    def measure(self, progress: Progress) -> tuple[SumsStore, list[str]]:
        """Return the sums per input, and phrases on the tokens that were left out."""
        progress.start(self.probe.kind, 2 * len(self.ids))
        paired = [
            PairedSums(traces, self.layers, self.ids, analyses=self.probe.analyses, alone=False)
            for traces in self.series
        ]
        sums = concat(
            pair_sums.sums(progress, self.division, name=name)
            for name, pair_sums in zip(("first", "last"), paired, strict=True)
        )
        if sums.num_rows == 0 and self.division.shard is None:
            raise UserError(
                f"Nothing can be said of {', '.join(self.layers)}: there is one expert, or all are chosen."
            )
        left_out = [
            phrase
            for traces, pair_sums in zip(self.series, paired, strict=True)
            for phrase in ignored_tokens(traces, pair_sums.left_out)
        ]
        return sums, list(dict.fromkeys(left_out))

    def notes(self) -> list[str]:
        """Return sentences on numbers that are missing or partial."""
        return notes_of(self.series[0], self.layers, self.ids)


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
