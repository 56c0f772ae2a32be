"""The run of a question to recordings: rows become sums per input, then tables, figures and a folder."""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pandas import DataFrame

from moeprobe.declarations.options import Options
from moeprobe.declarations.recording_probe import MatchedTraces, RecordingProbe
from moeprobe.inputs.modality import REQUEST
from moeprobe.judging.summarize import summarize
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.probes.engine.run import ShardedWork, TableWork
from moeprobe.probes.engine.shard import Shard, shard_note
from moeprobe.recorded.engine.describe import facts_of, notes_of, request_of
from moeprobe.recorded.engine.division import Division
from moeprobe.recorded.engine.units import units_of_recordings
from moeprobe.recordings.matching import match_traces
from moeprobe.recordings.pairs import NamedTrace, common_ids, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import choose_names
from moeprobe.results.stored import SumsStore
from moeprobe.runtime.progress import Progress

Q = TypeVar("Q", bound=RecordingProbe[Result])
M = TypeVar("M", bound=MatchedTraces[Result])


class RecordingWork(TableWork[Result], Generic[Q]):
    """A checked question to recordings that has not been answered yet.

    Args:
        probe: the question.
        options: where to, and how.
    """

    def __init__(self, probe: Q, options: Options) -> None:
        self.probe, self.options = probe, options

    def make_request(self, view: str, **facts: Any) -> dict[str, Any]:
        """Return everything that the numbers depend on: entries of all questions, then ``facts``."""
        return {
            "kind": self.probe.kind, "data": REQUEST.data, "split": "", "view": {"name": view}, "severities": [],
            "aligned": True, "layers": None if self.options.layers is None else list(self.options.layers),
            "seed": self.options.seed, "analyses": list(self.probe.analyses), **facts,
        }  # fmt: skip

    def make_result(
        self, table: DataFrame, comparison: DataFrame | None, sums: SumsStore, **facts: Any
    ) -> Result:
        """Return the result; ``facts`` are what its sidecar says beside the request."""
        sidecar = self.make_sidecar(**{"wall_seconds": self.seconds, "device": "cpu"} | facts)
        return Result(table, comparison, sums, sidecar, self.probe.draw, self.leading)

    def leading(self, result: Result) -> list[str]:
        """Return the sentences that a result begins with."""
        return leading_sentences(result, self.probe.layout)


class DividedWork(RecordingWork[Q], ShardedWork[Result]):
    """A question to recordings whose inputs can be divided among processes.

    A kind of question says how many inputs there are (``num_inputs``), and takes the sums of some (``measure``).

    Attributes:
        division: which inputs are measured here.
    """

    def __init__(self, probe: Q, options: Options) -> None:
        super().__init__(probe, options)
        self.division = Division()
        self._shard_notes: dict[str, Any] = {}

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """Inputs of the run."""

    @abstractmethod
    def measure(self, progress: Progress) -> object:
        """Return what the inputs of ``division`` have; a shard leaves it in its folder, from where it is merged."""

    @property
    def device(self) -> str:
        """Where it is computed."""
        return "cpu"

    def set_shard(self, shard: Shard) -> None:
        """Measure no more than a shard of the inputs."""
        self.division = Division(shard)

    def measure_parts(self, parts: Path, watcher: Progress) -> dict[str, Any]:
        """Write the sums of the inputs of the shard; returns the sidecar of the shard."""
        started = time.perf_counter()
        self.division.parts = parts
        watcher.start(self.probe.kind, self.num_inputs)
        self.measure(watcher)
        seconds, inputs = time.perf_counter() - started, self.division.inputs
        return {
            "images": inputs,
            "images_of_run": self.num_inputs,
            "skipped_images": [],
            "images_per_second": dict.fromkeys(self.request["checkpoints"], inputs / seconds),
            "wall_seconds": seconds,
            "device": self.device,
        }

    def use_shard_parts(self, shards: Mapping[Path, Mapping[str, Any]]) -> None:
        """Put the sums of shards together, in place of measuring the inputs."""
        self.division = Division(measured=tuple(shards))
        self._shard_notes = {"shards": [shard_note(sidecar) for sidecar in shards.values()]}

    def make_result(
        self, table: DataFrame, comparison: DataFrame | None, sums: SumsStore, **facts: Any
    ) -> Result:
        """Return the result, whose sidecar says which shards it was put together from."""
        facts = {"device": self.device} | facts | self._shard_notes
        return super().make_result(table, comparison, sums, **facts)


class TracesWork(DividedWork[M]):
    """A question to traces of the same inputs, the first of which is the reference.

    A kind of question says how traces are named (``name_traces``), which it refuses (``check``), and which sums it
    takes (``measure``).

    Attributes:
        traces: with the names that tables have for them.
        names: the user's names for the screen, as a part of the request.
        layers: which all traces have.
        ids: inputs that all traces have.
        matching: sentences on inputs that were matched by their tokens.
    """

    # Whether layers may have other numbers of experts in the traces.
    mapped = False

    def __init__(self, probe: M, options: Options) -> None:
        super().__init__(probe, options)
        files = [TraceFile(Path(path)) for path in probe.traces]  # type: ignore[attr-defined]
        matched, self.matching = match_traces(files, probe.match)
        self.traces = self.name_traces(matched)
        names = list(dict.fromkeys(trace_view.name for trace_view in self.traces))
        self.names = choose_names(options.names, names)
        self.layers = common_layers(matched, options.layers, mapped=self.mapped)
        self.check(matched)
        self.ids = common_ids(matched, self.layers)
        self.request = request_of(probe, self.traces, self.ids, options) | self.changed_request()
        self.units = units_of_recordings(options.unit, matched, self.ids)
        if self.units is not None:
            self.request |= self.units.request()

    def name_traces(self, files: Sequence[TraceFile]) -> list[NamedTrace]:
        """Return the traces as tables name them."""
        return name_all(files)

    def check(self, files: Sequence[TraceFile]) -> None:
        """Raise ``UserError`` where a trace is not of what the question is about."""

    def changed_request(self) -> dict[str, Any]:
        """Return the entries of the request that differ from ``request_of``."""
        return {}

    @abstractmethod
    def measure(self, progress: Progress) -> tuple[SumsStore, list[str] | None]:
        """Return the sums per input, and phrases on the tokens that were left out; None = all of them are used."""

    @property
    def num_inputs(self) -> int:
        """Inputs that all traces have."""
        return len(self.ids)

    def notes(self) -> list[str]:
        """Return sentences on numbers that are missing or partial."""
        return notes_of(self.traces, self.layers, self.ids)

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the traces, and put the tables together."""
        progress.start(self.probe.kind, self.num_inputs)
        sums, left_out = self.measure(progress)
        training = {trace_view.name: trace_view.trace.about["checkpoint"] for trace_view in self.traces}
        info = self.run_info(
            aligned=self.request["aligned"],
            train_seeds={name: provenance.get("seed") for name, provenance in training.items()},
            groups={name: provenance.get("group") or "" for name, provenance in training.items()},
        )
        table, comparison = summarize(sums, analyses=make_analyses(self.probe.analyses), run_info=info)
        return self.make_result(
            table,
            comparison,
            sums,
            notes=[*self.notes(), *self.matching],
            **({} if left_out is None else {"ignored": left_out}),
            **self.names,
            **facts_of(self.traces),
        )
