"""Measure recorded routing: from trace files to tables, figures and an output folder, without the model.

The analyses are shared with the probes and fed with the same records, so the numbers are the same.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.weights import WeightsAnalysis
from moeprobe.metrics.base import LayerAnalysis, trial_lists
from moeprobe.probes.analyze_trace import AnalyzeTrace
from moeprobe.probes.analyze_trace.describe import (
    facts_of,
    ignored_tokens,
    notes_of,
    request_of,
    weights_fit,
)
from moeprobe.probes.analyze_trace.input_sums import InputSums
from moeprobe.probes.analyze_trace.layout import leading_sentences_of
from moeprobe.probes.analyze_trace.sums import Across, load_of, sums_of_mapped
from moeprobe.probes.engine.batch_sums import sums_of_layer
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import TableWork
from moeprobe.recordings.expert_map import ExpertMap, read_expert_map
from moeprobe.recordings.matching import NAMES, check_match, match_traces
from moeprobe.recordings.pairs import (
    NamedTrace,
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
from moeprobe.results.sums import Cell
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
# From a layer, the names of some inputs and their pair to the pair with other numbers of experts.
Renumber = Callable[[str, Sequence[str], LayerPair], LayerPair]


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


class Measuring(InputSums):
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
        self._of_pairs = make_analyses(of_pairs)
        self._of_one = make_analyses(_ALONE) if alone else ()
        super().__init__(traces, layers, ids, lists=trial_lists(self._of_pairs))
        self._expert_map, self._renumber = expert_map, renumber
        self._marked = {
            name
            for name in ("generated", "token_ids")
            if any(trace_view.trace.marks(name) for trace_view in traces)
        }
        self.left_out: dict[str, tuple[int, int]] = {}

    def of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some inputs for each trace."""
        sums_of_traces: list[dict[Cell, dict[str, Tensor]]] = [{} for _ in self.traces]
        across = [Across() for _ in self.traces]
        for layer, longest in self.num_tokens.items():
            if any(trace_view.trace.layers[layer].load_only for trace_view in self.traces):
                for number, trace_view in enumerate(self.traces):
                    sums_of_traces[number] |= load_of(trace_view.trace, layer, ids)
                continue
            blocks = [trace_view.trace.read(layer, ids, num_tokens=longest) for trace_view in self.traces]
            for number, (trace_view, trace_block) in enumerate(zip(self.traces, blocks, strict=True)):
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
                    if layer == next(iter(self.num_tokens)):
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
