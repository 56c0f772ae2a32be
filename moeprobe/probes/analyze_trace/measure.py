"""Measure recorded routing: from trace files to tables, figures and an output folder, without the model.

The analyses are shared with the probes and fed with the same records, so the numbers are the same.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.weights import WeightsAnalysis
from moeprobe.metrics.base import LayerAnalysis, trial_lists
from moeprobe.probes.analyze_trace import AnalyzeTrace
from moeprobe.probes.analyze_trace.describe import (
    facts_of,
    ignored_tokens,
    most_tokens,
    notes_of,
    request_of,
    weights_fit,
)
from moeprobe.probes.analyze_trace.layout import leading_sentences_of
from moeprobe.probes.analyze_trace.sums import Across, load_of, sums_of_mapped
from moeprobe.probes.engine.batch_sums import sums_of_layer, to_host
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import TableWork
from moeprobe.recordings.expert_map import ExpertMap, read_expert_map
from moeprobe.recordings.matching import NAMES, check_match, match_traces
from moeprobe.recordings.pairs import (
    NamedTrace,
    clusters_of,
    common_ids,
    common_layers,
    common_prefix,
    name_all,
    pair,
    weighted,
)
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import choose_names
from moeprobe.results.stored import SumsStore, concat, concat_parts, of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from moeprobe.routing.record import LayerPair
from moeprobe.runtime.arguments import several
from moeprobe.runtime.progress import Progress, progress_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KIND = AnalyzeTrace.kind
# What is said of layers together or of experts by a map, and of a pair of traces.
_ACROSS = ("touched", "first_layer", "unshared")
_OF_PAIRS = tuple(name for name in AnalyzeTrace.analyses if name not in _ACROSS)
# What is said of a single trace.
_ALONE = ("confidence", "selection", "load", "unserved", "dropped", "experts_per_token")
# Inputs whose sums are in memory at a time, and choices of all layers of them; the smaller of the two limits. Sums keep
# a choice about seven times, and are copied as they move to a file.
INPUTS_IN_MEMORY, CHOICES_IN_MEMORY = 1024, 2**22
# From a layer, the names of some inputs and their pair to the pair with other numbers of experts.
Renumber = Callable[[str, Sequence[str], LayerPair], LayerPair]
# Inputs of a block that is read, and gates of one layer of it (4 MiB); the smaller of the two limits.
INPUTS_AT_ONCE, _GATES = 256, 2**20


@with_options
def analyze_trace(
    paths: str | Path | Sequence[str | Path],
    *,
    expert_map: str | Path | None = None,
    match: str = NAMES,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure routing that was recorded by ``record`` or made from a log by ``import_trace``.

    Of each trace: confidence and load. Of each except the first: how well its choices match the first trace's, input by
    input and token by token. Inputs that not all of them have are left out.

    Args:
        paths: trace files; the first is the reference.
        expert_map: JSON file that says which experts of the first trace became which of the others
            (``recordings.expert_map``); None = they have the same numbers.
        match: "names": an input has one name in all traces; "tokens": the same tokens, whatever it is called.
        options: only ``layers``, ``names``, ``seed`` (of the intervals), ``out``, ``overwrite``, ``figures`` and
            ``svg``; ``changes`` are applied to them by name.
        watcher: receives the progress of the run.

    Raises:
        UserError: a file is damaged or no trace, or they cannot be compared.
    """
    work = _TraceAnalysis(
        [Path(path) for path in several(paths)],
        expert_map=None if expert_map is None else Path(expert_map),
        match=match,
        options=combine(options, changes),
    )
    return work.execute(progress_of(watcher))


class _TraceAnalysis(TableWork[Result]):
    """Each trace by itself, and each but the first compared with the first."""

    def __init__(
        self, paths: Sequence[Path], *, expert_map: Path | None, match: str, options: Options
    ) -> None:
        self.options = options
        check_match(match)
        if not paths:
            raise UserError("Name at least one trace.")
        matched, self.matching = match_traces([TraceFile(path) for path in paths], match)
        self.traces = name_all(matched)
        self.names = choose_names(
            options.names, list(dict.fromkeys(trace_view.name for trace_view in self.traces))
        )
        files = [trace_view.trace for trace_view in self.traces]
        self.layers = common_layers(files, options.layers, mapped=expert_map is not None)
        self.ids = common_ids(files, self.layers)
        self.expert_map = (
            None if expert_map is None else read_expert_map(expert_map, files[0], files[1:], self.layers)
        )
        self.request = request_of(self.traces, self.ids, options, expert_map=self.expert_map)
        self.request |= {"match": match} if match != NAMES else {}

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the traces, and put the tables together."""
        traces, layers, ids = self.traces, self.layers, self.ids
        progress.start(_KIND, len(ids))
        measuring = Measuring(traces, layers, ids, expert_map=self.expert_map)
        sums = measuring.sums(progress)
        if sums.num_rows == 0:
            raise UserError(
                f"Nothing can be said of {', '.join(layers)} of {traces[0].trace.path}: there is one expert, or no "
                "choices and no gates are recorded."
            )
        training = {trace_view.name: trace_view.trace.about["checkpoint"] for trace_view in traces}
        info = self.run_info(
            aligned=self.request["aligned"],
            train_seeds={name: about.get("seed") for name, about in training.items()},
            groups={name: about.get("group") or "" for name, about in training.items()},
        )
        analyses = make_analyses(AnalyzeTrace.analyses)
        table, comparison = summarize(sums, analyses=analyses, run_info=info)
        notes = notes_of(traces, layers, ids, expert_map=self.expert_map)
        sidecar = self.make_sidecar(
            notes=notes + self.matching,
            ignored=ignored_tokens(traces, measuring.left_out),
            wall_seconds=self.seconds,
            **self.names,
            **facts_of(traces),
        )
        return Result(table, comparison, sums, sidecar, _draw, leading_sentences_of)


def _draw(result: Result) -> "dict[str, Figure]":
    """Draw a result; what draws is slow to import, and most analyses draw nothing."""
    from moeprobe.probes.analyze_trace.figure import figures_of

    return figures_of(result)


class Measuring:
    """The sums per input of every trace; of the first, alone, only on request.

    Args:
        traces: the first is the reference.
        layers: which all traces have.
        ids: inputs that all traces have.
        expert_map: which experts became which.
        alone: whether the first trace is measured by itself.
        of_pairs: analyses of a pair.
        renumber: gives a pair the numbers of experts that are compared; None = as in the traces.

    Attributes:
        left_out: by trace, tokens of the first one and of it after the common beginning.
    """

    def __init__(
        self,
        traces: Sequence[NamedTrace],
        layers: Sequence[str],
        ids: Sequence[str],
        *,
        expert_map: ExpertMap | None = None,
        alone: bool = True,
        of_pairs: Sequence[str] = _OF_PAIRS,
        renumber: Renumber | None = None,
    ) -> None:
        self._traces, self._expert_map, self._alone = traces, expert_map, alone
        self._renumber = renumber
        self._clusters = clusters_of([trace_view.trace for trace_view in traces])
        self._ids = self._with_clusters_together(ids)
        # Of each layer as many tokens as the longest of all inputs has.
        self._tokens = {layer: most_tokens(traces, layer, ids) for layer in layers}
        self._marked = {
            name
            for name in ("generated", "token_ids")
            if any(trace_view.trace.marks(name) for trace_view in traces)
        }
        self.left_out: dict[str, tuple[int, int]] = {}
        self._of_pairs = make_analyses(of_pairs)
        self._of_one = make_analyses(_ALONE) if alone else ()
        self._lists = trial_lists(self._of_pairs)

    def sums(self, watcher: Progress) -> SumsStore:
        """Return the sums per input of every trace; of more inputs than one part holds they are kept in files."""
        layers = self._traces[0].trace.layers
        of_input = sum(longest * layers[layer].top_k for layer, longest in self._tokens.items())
        size = max(min(INPUTS_IN_MEMORY, CHOICES_IN_MEMORY // max(of_input, 1)), 1)
        parts = (self._part(ids, watcher) for ids in self._parts(size))
        return concat_parts(parts, in_files=len(self._ids) > size)

    def _with_clusters_together(self, ids: Sequence[str]) -> list[str]:
        order: dict[str, int] = {}
        for name in ids:
            order.setdefault(self._cluster(name), len(order))
        return sorted(ids, key=lambda name: order[self._cluster(name)])

    def _cluster(self, name: str) -> str:
        return self._clusters.get(name, name)

    def _parts(self, size: int) -> Iterator[Sequence[str]]:
        """Yield the inputs in parts of about a size, none of which ends inside a cluster."""
        start = 0
        while start < len(self._ids):
            end = min(start + size, len(self._ids))
            while end < len(self._ids) and self._cluster(self._ids[end]) == self._cluster(self._ids[end - 1]):
                end += 1
            yield self._ids[start:end]
            start = end

    def _part(self, ids: Sequence[str], watcher: Progress) -> SumsStore:
        accumulators: dict[str, Accumulator] = {}
        layers = self._traces[0].trace.layers
        of_one = max(max(longest, 1) * layers[layer].num_experts for layer, longest in self._tokens.items())
        size = max(min(INPUTS_AT_ONCE, _GATES // of_one), 1)
        for start in range(0, len(ids), size):
            block = ids[start : start + size]
            label = {"label": np.full(len(block), -1)}
            for trace_view, sums in zip(self._traces, self._of_block(block), strict=True):
                accumulator = accumulators.setdefault(trace_view.name, Accumulator())
                for cell, columns in sums.items():
                    placed = dataclasses.replace(cell, view=trace_view.view, severity=trace_view.severity)
                    accumulator.add(
                        placed, block, label | {name: to_host(column) for name, column in columns.items()}
                    )
            watcher.advance(len(block))
        return concat(
            of_table(image_table(sums.by_cluster(self._clusters, lists=self._lists), checkpoint=name))
            for name, sums in accumulators.items()
            if sums.cells()
        )

    def _of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some inputs for each trace."""
        sums_of_traces: list[dict[Cell, dict[str, Tensor]]] = [{} for _ in self._traces]
        across = [Across() for _ in self._traces]
        for layer, longest in self._tokens.items():
            if any(trace_view.trace.layers[layer].load_only for trace_view in self._traces):
                for number, trace_view in enumerate(self._traces):
                    sums_of_traces[number] |= load_of(trace_view.trace, layer, ids)
                continue
            blocks = [trace_view.trace.read(layer, ids, num_tokens=longest) for trace_view in self._traces]
            for number, (trace_view, trace_block) in enumerate(zip(self._traces, blocks, strict=True)):
                subject = pair(
                    blocks[0],
                    trace_block,
                    view_trace=trace_view,
                    known_columns=self._marked if number else (),
                )
                has_weights = (
                    weighted(trace_block.layer) and weighted(blocks[0].layer) and weights_fit(longest)
                )
                if number and self._renumber is not None:
                    subject = self._renumber(layer, ids, subject)
                analyses = [
                    analysis
                    for analysis in (self._of_pairs if number else self._of_one)
                    if isinstance(analysis, LayerAnalysis)
                    and (has_weights or not isinstance(analysis, WeightsAnalysis))
                ]
                if number and self._expert_map is not None:
                    subject, sums = sums_of_mapped(analyses, layer, subject, self._expert_map)
                else:
                    sums = sums_of_layer(analyses, layer, subject)
                sums_of_traces[number] |= sums
                if number and subject.aligned:
                    across[number].add(layer, subject)
                    if layer == next(iter(self._tokens)):
                        self._count(trace_view, blocks[0], trace_block)
        return [
            sums if layers_across.empty else layers_across.joined(sums)
            for sums, layers_across in zip(sums_of_traces, across, strict=True)
        ]

    def _count(self, trace_view: NamedTrace, reference: Block, view: Block) -> None:
        """Count the tokens that are left out."""
        num_common = int(common_prefix(reference, view).sum())
        before = self.left_out.get(trace_view.label, (0, 0))
        num_left_out = (int(block.num_tokens.sum()) - num_common for block in (reference, view))
        first, of_view = (earlier + count for earlier, count in zip(before, num_left_out, strict=True))
        self.left_out[trace_view.label] = (first, of_view)
