"""The work of ``trace drift``: each trace of a series against the first and against the last."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moeprobe.errors import UserError
from moeprobe.metrics.declaration import NumberName
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.recorded.drift import Drift
from moeprobe.recorded.drift.layers import rows_of_layers
from moeprobe.recorded.drift.sentences import FIRST, LAST, since_first, steps_of, view_of
from moeprobe.recorded.engine.describe import ignored_tokens, notes_of
from moeprobe.recorded.engine.paired_sums import PairedSums
from moeprobe.recorded.engine.work import TracesWork
from moeprobe.recordings.pairs import NamedTrace, check_tokens, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.stored import SumsStore, concat
from moeprobe.results.tables import with_rows
from moeprobe.results.values import Evaluator
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

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Put the tables together, with what holds for all layers at once."""
        result = super().compute(folder, progress)
        return replace(result, table=with_rows(result.table, self._rows_of_layers(result)))

    def _rows_of_layers(self, result: Result) -> list[dict[str, Any]]:
        """Return the lines on all layers, from the first checkpoint to the last."""
        rows = since_first(result.table)
        if rows.empty:
            return []
        lines = result.table.loc[rows.index].to_dict("records")
        name = NumberName(lines[0]["metric"], lines[0]["null"])
        evaluate = Evaluator.for_differences(
            make_analyses(self.probe.analyses),
            aligned=True,
            seed=self.options.seed,
            unit_of=None if self.units is None else self.units.unit_of,
        )
        view, tokens = lines[0]["view"], lines[0]["tokens"]
        influences = {}
        for stored in result.sums:
            if stored.cell.view == view and stored.cell.tokens == tokens and stored.cell.layer:
                influence = evaluate(stored).influences.get(name)
                if influence is not None and not np.isnan(influence).any():
                    influences[stored.cell.layer] = influence
        return rows_of_layers(lines, influences, seed=self.options.seed)

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
