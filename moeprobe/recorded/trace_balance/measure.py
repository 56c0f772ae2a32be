"""The work of ``trace balance``: the load of a recording over windows of requests, and over ranks.

Axes: n requests, E experts, W windows, L layers, N ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import IMAGE, REQUEST
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.hot_experts import HotExperts, WindowLoads
from moeprobe.metrics.analyses.input_experts import InputExperts, InputUses
from moeprobe.metrics.analyses.load import loads
from moeprobe.metrics.analyses.rank_load import RankLoad, RankLoads
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.linearized import LARGEST
from moeprobe.metrics.stats.statistic import Array
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.recorded.engine.division import share_of
from moeprobe.recorded.engine.kinds import kinds_in, masks_of, restrict
from moeprobe.recorded.engine.sequences import kind_of_tokens
from moeprobe.recorded.engine.work import DividedWork
from moeprobe.recorded.trace_balance import TraceBalance
from moeprobe.recorded.trace_balance.course import course_rows
from moeprobe.recorded.trace_balance.relabeled import JudgedPlacement, relabeled_loads, relabeled_rows
from moeprobe.recorded.trace_balance.watch import VIEW as BATCHES
from moeprobe.recorded.trace_balance.watch import Batches, watched_rows
from moeprobe.recordings.pairs import clusters_of, common_layers
from moeprobe.recordings.placement import Placement, consecutive, greedy, read_placement
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_routing
from moeprobe.results import summaries
from moeprobe.results.columns import ALWAYS_VALID
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.stored import SumsStore, concat_parts, of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import WITHOUT_INTERVAL, image_table, with_rows
from moeprobe.runtime.files import sha256
from moeprobe.runtime.progress import Progress

# What the tables call the rows on hot experts, and those on the second half of the requests.
_VIEW, SECOND_HALF = "windows", ", second half"
# Requests that are read at a time, and places for gates of one layer of them (16 MiB); the smaller of the two limits.
REQUESTS_AT_ONCE, _GATES = 256, 2**22
# Counts of experts that are in memory at a time.
_COUNTS = 2**24
# By layer: how often each sample chose each expert ``(n, E)``, and what its inputs use ``(2, n)``.
_Choices = dict[str, NDArray[np.integer[Any]]]
_Uses = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class _Requests:
    """Samples of a recording in the order of the file: requests, or several of them, and their windows.

    Attributes:
        names: of the samples ``(n,)``.
        window: of each ``(n,)``.
        row_of: the sample of each independent request.
    """

    names: list[str]
    window: NDArray[np.int64]
    row_of: Mapping[str, int]

    @property
    def half(self) -> int:
        """The first sample of the second half."""
        return len(self.names) // 2

    @property
    def is_single(self) -> bool:
        """Whether there is one sample alone: no time passes, and no half is left to judge a placement by."""
        return len(self.names) == 1


class LoadOverTime(DividedWork[TraceBalance]):
    """A trace whose load is looked at by window and rank."""

    def __init__(self, probe: TraceBalance, options: Options) -> None:
        super().__init__(probe, options)
        self.trace = trace = TraceFile(Path(probe.trace))
        self.layers = common_layers([trace], options.layers)
        experts = {layer: trace.layers[layer].num_experts for layer in self.layers}
        for name in self.layers:
            layer = trace.layers[name]
            if layer.experts_choose or not 0 < layer.top_k < layer.num_experts:
                raise UserError(
                    f"In {name} of {trace.path} tokens do not choose among experts, so none is hotter than another; "
                    f"leave the layer out with {option('layers')}."
                )
        self.placement: Placement | None = None
        if probe.placement is not None:
            # All layers of the trace, since a placement file must name each of them.
            self.placement = read_placement(probe.placement, experts, every_layer=list(trace.layers))
        elif probe.ranks is not None:
            self.placement = consecutive(experts, probe.ranks)
        self.clusters = clusters_of([trace])
        self.requests = self._requests(probe.windows)
        self.batches = Batches.of(
            list(self.requests.row_of), every=probe.every, periods=probe.periods, baseline=probe.baseline
        )
        self.name = str(trace.about["checkpoint"]["name"])
        self.hash = trace.parts.sha256()
        self.request = self.make_request(
            _VIEW,
            data=trace.about["data"] or REQUEST.data,
            split=trace.about["split"] or "",
            windows=probe.windows,
            ranks=probe.ranks,
            placement=None if probe.placement is None else sha256(probe.placement),
            checkpoints={self.name: {"sha256": self.hash}},
            **self._watching(),
        )

    def _watching(self) -> dict[str, Any]:
        """Return the entries of the request on batches; none where nothing is watched."""
        if self.batches is None:
            return {}
        periods = self.probe.periods
        return {
            "every": self.probe.every,
            "periods": None if periods is None else sha256(periods),
            "baseline": self.batches.baseline,
        }

    def _requests(self, windows: int) -> _Requests:
        """Return the samples and their windows."""
        # Requests of one cluster are one sample.
        names = list(dict.fromkeys(self.clusters.get(name, name) for name in self.trace.ids))
        if len(names) == 1:
            if self.placement is None:
                raise UserError(
                    f"{self.trace.path} has one input, so nothing follows on hot experts over time; use "
                    f"{option('ranks')} to see how even its load is."
                )
            windows = 1
        if len(names) < windows:
            raise UserError(
                f"{self.trace.path} has {len(names)} independent requests, too few for {windows} windows; record "
                f"more, or use {option('windows', len(names))} or fewer."
            )
        # More samples than are resampled would have no interval of the overlaps, which follow from no influence.
        size = -(-len(names) // LARGEST)
        samples = names[::size]
        # Requests in the order of the file, cut into windows of equal numbers.
        window = np.arange(len(samples)) * windows // len(samples)
        return _Requests(samples, window, {name: index // size for index, name in enumerate(names)})

    @property
    def num_inputs(self) -> int:
        """Requests of the trace."""
        return len(self.trace.ids)

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the trace, and put the tables together."""
        progress.start(self.probe.kind, self.num_inputs)
        counts_by_kind, of_batches = self.measure(progress)
        info = self.run_info(aligned=True, train_seeds={self.name: None}, groups={self.name: ""})
        sums = self._sums(counts_by_kind)
        analyses = make_analyses(self.probe.analyses)
        table, comparison = summarize(sums, analyses=analyses, run_info=info)
        relabeled = [
            row
            for tokens, (choices, _) in counts_by_kind.items()
            for row in self._relabeled_rows(choices, info, tokens)
        ]
        choices, _ = counts_by_kind[REQUEST.token]
        extra_rows = [*relabeled, *self._course_rows(choices, info), *self._watched_rows(of_batches, info)]
        table = with_rows(table, extra_rows)
        return self.make_result(
            table,
            comparison,
            sums,
            checkpoints={self.name: {"path": str(self.trace.path), "sha256": self.hash}},
            colors=colors([self.name]),
            skipped_images=sorted(self.trace.about["skipped"]),
            notes=self._notes(),
        )

    def _notes(self) -> list[str]:
        """Return a sentence on requests that are no samples by themselves, or on there being only one."""
        if self.requests.is_single:
            return ["hot experts over time and a greedy placement, which take two inputs at least"]
        alone, samples = len(self.requests.row_of), len(self.requests.names)
        if alone == samples:
            return []
        return [
            f"intervals over single requests: of {alone:,} requests, {-(-alone // samples)} that follow one another "
            "are one sample"
        ]

    def _batch_choices(self) -> dict[str, NDArray[np.int64]]:
        """Return zeros in the places of how often each batch chooses each expert ``(B, E)``; none without batches."""
        if self.batches is None:
            return {}
        experts = {name: self.trace.layers[name].num_experts for name in self.layers}
        return {name: np.zeros((self.batches.count, count), np.int64) for name, count in experts.items()}

    def _course_rows(self, choices: _Choices, info: summaries.About) -> Iterator[dict[str, Any]]:
        """Yield the lines on whether loads change from window to window."""
        requests = self.requests
        windows = int(requests.window.max()) + 1
        for row in course_rows(choices, requests.window, windows) if windows > 1 else ():
            cell = self._cell_of(row.layer, _VIEW, REQUEST.token)
            number = Replicates(row.value, np.empty(0), images=len(requests.names), trials=row.trials)
            yield (
                summaries.row(info, self.name, cell, NumberName(row.metric, "", row.expert), number)
                | WITHOUT_INTERVAL
                | {"flag": ""}
            )

    def _watched_rows(
        self, of_batches: Mapping[str, NDArray[np.int64]], info: summaries.About
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines on whether the load has moved since the baseline."""
        if self.batches is None:
            return
        choices = {layer: counts.sum(1) for layer, counts in of_batches.items()}
        choices[""] = np.sum([*choices.values()], axis=0)
        sizes = self.batches.sizes
        for row in watched_rows(of_batches, self.batches.baseline):
            severity = np.nan if row.batch is None else float(row.batch)
            cell = self._cell_of(row.layer, BATCHES, REQUEST.token, severity)
            requests, trials = int(sizes[row.behind].sum()), int(choices[row.layer][row.behind].sum())
            number = Replicates(row.value, np.empty(0), images=requests, trials=trials)
            line = summaries.row(info, self.name, cell, NumberName(row.metric, ""), number)
            low, high = row.ends
            method = ALWAYS_VALID if low == low else ""
            yield line | {"ci_low": low, "ci_high": high, "interval": method, "flag": ""}

    def measure(
        self, progress: Progress
    ) -> tuple[dict[str, tuple[_Choices, _Uses]], dict[str, NDArray[np.int64]]]:
        """Return how often each sample chose each expert ``(n, E)``, and what its inputs use ``(2, n)``, by layer.

        The latter are the different experts of each input, added up, and the inputs with any choice: a sample of
        several inputs uses more experts than one of them. First of all tokens, then of each kind where some are of
        pictures. Counts of processes add up, so a sample may be divided among them. Beside them how often each batch
        chose each expert ``(B, E)``, by layer.
        """
        kinds = kinds_in([self.trace])
        counts_by_kind = {tokens: self._no_choices() for tokens in (REQUEST.token, *kinds)}
        arrays: dict[str, NDArray[np.integer[Any]]] = {}
        for tokens, (choices, uses) in counts_by_kind.items():
            for layer in self.layers:
                arrays[f"choices of {tokens} in {layer}"] = choices[layer]
                arrays[f"uses of {tokens} in {layer}"] = uses[layer]
        of_batches = self._batch_choices()
        arrays |= {f"batches in {layer}": counts for layer, counts in of_batches.items()}
        if self.division.measured:
            self.division.add_arrays(arrays)
            return counts_by_kind, of_batches
        size = self._block_size
        first, last = 0, self.num_inputs
        if self.division.shard is not None:
            first, last = share_of(range(0, last, size), last, self.division.shard)
            self.division.inputs = last - first
        for start in range(first, last, size):
            block = self.trace.ids[start : min(start + size, last)]
            self._count(block, counts_by_kind, of_batches, kinds)
            progress.advance(len(block))
        if self.division.shard is not None:
            self.division.write_arrays(arrays)
        return counts_by_kind, of_batches

    @property
    def _block_size(self) -> int:
        """Requests that are read at once: the widest layer decides how many fit into memory."""
        trace = self.trace
        longest = {layer: max(int(trace.num_tokens(layer, trace.ids).max()), 1) for layer in self.layers}
        widest = max(tokens * trace.layers[layer].num_experts for layer, tokens in longest.items())
        return max(min(REQUESTS_AT_ONCE, _GATES // widest, trace.fitting(max(longest.values()))), 1)

    def _count(
        self,
        block: Sequence[str],
        counts_by_kind: Mapping[str, tuple[_Choices, _Uses]],
        of_batches: Mapping[str, NDArray[np.int64]],
        kinds: Sequence[str],
    ) -> None:
        """Add the choices of some requests; all tokens' choices go to their batches, too."""
        samples = [self.clusters.get(name, name) for name in block]
        rows = [self.requests.row_of[sample] for sample in samples]
        for layer in self.layers:
            for tokens, of_block in _choices_of(self.trace, layer, block, kinds).items():
                counts, uses = counts_by_kind[tokens]
                # ``add.at``, since several inputs of a block may belong to one sample.
                np.add.at(counts[layer], rows, of_block)
                if self.batches is not None and tokens == REQUEST.token:
                    self.batches.add(of_batches[layer], samples, of_block)
                for column, numbers in zip(
                    uses[layer], ((of_block > 0).sum(1), of_block.any(1)), strict=True
                ):
                    np.add.at(column, rows, numbers)

    def _no_choices(self) -> tuple[_Choices, _Uses]:
        """Return zeros in the places of all counts."""
        samples = len(self.requests.names)
        counts, uses = {}, {}
        for name in self.layers:
            layer = self.trace.layers[name]
            # A request has far fewer choices than an int32 holds; counts of days of serving do not fit.
            counts[name] = np.zeros((samples, layer.num_experts), np.int64 if layer.load_only else np.int32)
            uses[name] = np.zeros((2, samples), np.int64)
        return counts, uses

    def _sums(self, counts_by_kind: Mapping[str, tuple[_Choices, _Uses]]) -> SumsStore:
        """Return the sums of all cells; of many requests they are kept in files."""
        parts = (
            of_table(image_table(accumulator, checkpoint=self.name))
            for tokens, (choices, uses) in counts_by_kind.items()
            for accumulator in self._cells(choices, uses, tokens)
        )
        size = sum(counts.size for choices, _ in counts_by_kind.values() for counts in choices.values())
        return concat_parts(parts, in_files=size > _COUNTS)

    def _cells(self, choices: _Choices, uses: _Uses, tokens: str) -> Iterator[Accumulator]:
        """Yield the experts of each layer, then the ranks of each layer and of all, under each placement.

        For the tokens of one kind, only the given placement is looked at, over all requests.
        """
        every = slice(0, len(self.requests.names))
        for layer, counts in choices.items():
            experts, inputs = torch.from_numpy(uses[layer])
            columns = InputExperts().sums(InputUses(experts, inputs))
            if not self.requests.is_single:
                subject = WindowLoads(torch.from_numpy(counts.astype(np.int64)), self._window(every))
                columns |= HotExperts().sums(subject)
            yield self._cell(self._cell_of(layer, _VIEW, tokens), every, columns)
        if self.placement is None:
            return
        for judged in self._judge_placements(choices, tokens):
            rows = slice(judged.start, None)
            of_layers = {
                layer: _ranks(counts[rows], judged.placement.shares[layer])
                for layer, counts in choices.items()
            }
            for layer, loaded in of_layers.items():
                of_layer = self._rank_sums([loaded], rows)
                yield self._cell(self._cell_of(layer, judged.name, tokens), rows, of_layer)
            columns = self._rank_sums(list(of_layers.values()), rows)
            yield self._cell(self._cell_of("", judged.name, tokens), rows, columns)
            # Windows only of all layers together: a number for each layer and window would be too many.
            for window in judged.windows[0] if self._by_window(judged, tokens) else ():
                inside = self.requests.window == window
                of_window = {key: column[inside] for key, column in columns.items()}
                yield self._cell(self._cell_of("", judged.name, tokens, window + 1.0), inside, of_window)

    def _judge_placements(self, choices: _Choices, tokens: str) -> list[JudgedPlacement]:
        """Return the given placement, the same on the second half, and the greedy one of the first half there.

        Of a single sample there are no halves, and experts are placed for all tokens, not for one kind of them.
        """
        assert self.placement is not None
        half, window = self.requests.half, self.requests.window
        all_requests = JudgedPlacement(self.placement.name, self.placement, 0, window)
        if self.requests.is_single or tokens != REQUEST.token:
            return [all_requests]
        first = {layer: counts[:half].sum(0).astype(np.float64) for layer, counts in choices.items()}
        balanced = greedy(first, self.placement.num_ranks)
        return [
            all_requests,
            *(
                JudgedPlacement(f"{placement.name}{SECOND_HALF}", placement, half, window[half:])
                for placement in (self.placement, balanced)
            ),
        ]

    def _by_window(self, judged: JudgedPlacement, tokens: str) -> bool:
        """Whether each window has numbers of its own: all tokens under the given placement, and several windows."""
        return judged.start == 0 and not self.requests.is_single and tokens == REQUEST.token

    def _relabeled_rows(
        self, choices: _Choices, info: summaries.About, tokens: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines on the imbalance of the ranks where experts are relabeled within each request."""
        if self.placement is None:
            return
        placements = self._judge_placements(choices, tokens)
        busiest = relabeled_loads(choices, placements)
        for judged in placements:
            rows = relabeled_rows(
                choices, judged, busiest[judged.name], by_window=self._by_window(judged, tokens)
            )
            for row in rows:
                severity = np.nan if row.window is None else float(row.window)
                cell = self._cell_of(row.layer, judged.name, tokens, severity)
                inside = (
                    np.ones(len(judged.window), bool)
                    if row.window is None
                    else judged.window == row.window - 1
                )
                counts = [choices[row.layer]] if row.layer else list(choices.values())
                trials = np.sum([part[judged.start :][inside].sum(1) for part in counts], axis=0)
                for metric, (value, low, high) in row.numbers.items():
                    number = Replicates(
                        value, np.empty(0), images=int(np.count_nonzero(trials)), trials=int(trials.sum())
                    )
                    line = summaries.row(info, self.name, cell, NumberName(metric, ""), number)
                    interval = "permutations" if low == low else ""
                    yield line | {"ci_low": low, "ci_high": high, "interval": interval, "flag": ""}

    def _cell(self, cell: Cell, rows: Any, columns: Mapping[str, torch.Tensor]) -> Accumulator:
        """Return the sums of one cell, of some of the samples."""
        names = np.array(self.requests.names)[rows].tolist()
        accumulator = Accumulator()
        label = {"label": np.full(len(names), -1)}
        sums = label | {key: column.numpy() for key, column in columns.items()}
        accumulator.add(cell, names, sums)
        return accumulator

    def _cell_of(self, layer: str, view: str, tokens: str, severity: float = np.nan) -> Cell:
        """Return what sums of some tokens of a layer, or of all layers (""), are about."""
        info = self.trace.layers.get(layer)
        # Tables call inputs by their tokens.
        if tokens == REQUEST.token and kind_of_tokens(self.trace) == IMAGE.token:
            tokens = IMAGE.token
        return Cell(
            layer=layer,
            router="" if info is None else info.router,
            top_k=0 if info is None else info.top_k,
            view=view,
            severity=float(severity),
            tokens=tokens,
        )

    def _window(self, rows: slice) -> torch.Tensor:
        """Return 1 in the window of each sample ``(n, W)``."""
        window = torch.from_numpy(self.requests.window)
        return torch.nn.functional.one_hot(window)[rows]

    def _rank_sums(self, layers: Sequence[Mapping[str, Array]], rows: slice) -> dict[str, torch.Tensor]:
        """Return the sums of some layers together."""
        stacked = {
            name: torch.from_numpy(np.stack([layer[name] for layer in layers], axis=1)) for name in layers[0]
        }
        return RankLoad().sums(RankLoads(**stacked, window=self._window(rows)))


def _ranks(counts: NDArray[np.integer[Any]], share: Array) -> dict[str, Any]:
    """Return the loads of the ranks ``(n, N)``, and the choices ``(n,)``."""
    return {"loads": counts @ share, "choices": counts.sum(1, dtype=np.int64)}


def _choices_of(
    trace: TraceFile, layer: str, ids: Sequence[str], kinds: Sequence[str]
) -> dict[str, NDArray[np.int64]]:
    """Return how often some inputs chose each expert ``(n, E)``: all of their tokens, and each kind of them."""
    if trace.layers[layer].load_only:
        return {REQUEST.token: trace.counts(layer, ids)}
    block = trace.read(layer, ids)
    routing = to_routing(block)
    by_kind = {kind: restrict(routing, mask) for kind, mask in masks_of([block], kinds).items()}
    counts = {}
    for tokens, restricted in ({REQUEST.token: routing} | by_kind).items():
        columns = loads("load", [restricted])
        counts[tokens] = columns.get("load_any", columns["load"]).numpy()
    return counts
