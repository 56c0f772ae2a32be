"""Read traces block by block, and keep the sums per input of each: what all probes of recorded tokens share."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from moeprobe.probes.engine.batch_sums import to_host
from moeprobe.recorded.engine.describe import most_tokens
from moeprobe.recorded.engine.division import Division, blocks_of, share_of
from moeprobe.recordings.pairs import NamedTrace, clusters_of
from moeprobe.results.stored import SumsStore, compute_parts, concat, concat_parts, of_accumulator
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.runtime.progress import Progress

# Inputs whose sums are in memory at a time, and choices of all layers of them; the smaller of the two limits. Sums keep
# a choice about seven times, and are copied as they move to a file.
INPUTS_IN_MEMORY, CHOICES_IN_MEMORY = 1024, 2**22
# Inputs of a block that is read, gates of one layer of it (4 MiB), or choices; the smaller of the two limits.
INPUTS_AT_ONCE, _VALUES = 256, 2**20


class InputSums(ABC):
    """The sums per input of some traces, in parts that end between clusters.

    Args:
        traces: the first is the reference.
        layers: which all traces have.
        ids: inputs that all traces have.
        lists: beginnings of the columns that hold an entry per trial (``metrics.base.trial_lists``).
        clusters: of the inputs that are no samples by themselves; None = as the traces say.
        together: inputs that follow one another and are never in different blocks.

    Attributes:
        traces: as given.
        num_tokens: of each layer as many tokens as the longest of all inputs has.
        left_out: by trace, tokens of the first one and of it that were not compared, where any are counted.
        in_processes: whether several processes may compute parts; ``of_block`` then changes nothing, and uses NumPy.
        has_gates: whether ``of_block`` looks at gates of all experts, which take much more memory than choices.
    """

    in_processes: ClassVar[bool] = False
    has_gates: ClassVar[bool] = True

    def __init__(
        self,
        traces: Sequence[NamedTrace],
        layers: Sequence[str],
        ids: Sequence[str],
        *,
        lists: tuple[str, ...],
        clusters: Mapping[str, str] | None = None,
        together: int = 1,
    ) -> None:
        self.traces = traces
        self.num_tokens = {layer: most_tokens(traces, layer, ids) for layer in layers}
        self._lists = lists
        self._together = together
        self._clusters = (
            clusters_of([trace_view.trace for trace_view in traces]) if clusters is None else clusters
        )
        self._ids = self._with_clusters_together(ids)
        self.left_out: dict[str, tuple[int, int]] = {}

    @abstractmethod
    def of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some inputs for each trace."""

    def cell_of(self, trace_view: NamedTrace, cell: Cell) -> Cell:
        """Return what a cell of a trace is called: with the view and the severity of the trace."""
        return dataclasses.replace(cell, view=trace_view.view, severity=trace_view.severity)

    def numbers_of_input(self) -> int:
        """Return how many numbers the sums of the longest input hold, in all layers: its choices."""
        layers = self.traces[0].trace.layers
        return sum(longest * layers[layer].top_k for layer, longest in self.num_tokens.items())

    def sums(self, watcher: Progress, division: Division | None = None, *, name: str = "sums") -> SumsStore:
        """Return the sums per input of every trace; of more inputs than one part holds they are kept in files.

        Args:
            watcher: receives how many inputs were measured.
            division: which inputs are measured here, and which were measured elsewhere; None = all here.
            name: of these sums, where a run has several.
        """
        size = max(min(INPUTS_IN_MEMORY, CHOICES_IN_MEMORY // max(self.numbers_of_input(), 1)), 1)
        parts = list(self._parts(size))
        division = division or Division()
        if division.measured:
            for facts in division.facts(name):
                self.add_left_out(facts.left_out)
            return concat_parts(division.read(name, len(parts)), in_files=len(self._ids) > size)
        if division.shard is None and self.in_processes and len(parts) > 1:
            return compute_parts(
                lambda number: self._part(*parts[number], Progress()),
                len(parts),
                progress=lambda number: watcher.advance(parts[number][1] - parts[number][0]),
            )
        if division.shard is None:
            stores = (self._part(start, stop, watcher) for start, stop in parts)
            return concat_parts(stores, in_files=len(self._ids) > size)
        starts = [start for start in blocks_of(parts, self._block_size) if not self._is_within_cluster(start)]
        first, last = share_of(starts, len(self._ids), division.shard)
        division.inputs = last - first
        ranges = ((number, max(start, first), min(stop, last)) for number, (start, stop) in enumerate(parts))
        pieces = (
            (number, self._part(start, stop, watcher)) for number, start, stop in ranges if start < stop
        )
        return division.write(name, pieces, self.left_out)

    def add_left_out(self, counts: Mapping[str, Sequence[int]]) -> None:
        """Add tokens that another process left out; by trace, of the first one and of it."""
        for label, of_both in counts.items():
            first, second = (
                earlier + count
                for earlier, count in zip(self.left_out.get(label, (0, 0)), of_both, strict=True)
            )
            self.left_out[label] = (first, second)

    def _with_clusters_together(self, ids: Sequence[str]) -> Sequence[str]:
        if not self._clusters:
            return ids
        order: dict[str, int] = {}
        for name in ids:
            order.setdefault(self._cluster(name), len(order))
        return sorted(ids, key=lambda name: order[self._cluster(name)])

    def _cluster(self, name: str) -> str:
        return self._clusters.get(name, name)

    def _is_within_cluster(self, index: int) -> bool:
        """Whether an input is of the cluster of the one before it."""
        return index > 0 and self._cluster(self._ids[index]) == self._cluster(self._ids[index - 1])

    def _parts(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield where parts of about a size begin and end; none ends inside a cluster."""
        start = 0
        while start < len(self._ids):
            end = min(start + size, len(self._ids))
            while end < len(self._ids) and self._is_within_cluster(end):
                end += 1
            yield start, end
            start = end

    @property
    def _block_size(self) -> int:
        """Inputs that are read at once."""
        layers = self.traces[0].trace.layers
        of_one = max(
            max(longest * (layers[layer].num_experts if self.has_gates else layers[layer].top_k), 1)
            for layer, longest in self.num_tokens.items()
        )
        fitting = self.traces[0].trace.fitting(max(self.num_tokens.values()))
        size = max(min(INPUTS_AT_ONCE, _VALUES // of_one, fitting), 1)
        return -(-size // self._together) * self._together

    def _part(self, first: int, last: int, watcher: Progress) -> SumsStore:
        """Return the sums of the inputs from ``first`` up to ``last``, block by block."""
        accumulators: dict[str, Accumulator] = {}
        size = self._block_size
        for start in range(first, last, size):
            block = self._ids[start : min(start + size, last)]
            label = {"label": np.full(len(block), -1)}
            for trace_view, sums in zip(self.traces, self.of_block(block), strict=True):
                accumulator = accumulators.setdefault(trace_view.name, Accumulator())
                for cell, columns in sums.items():
                    accumulator.add(
                        self.cell_of(trace_view, cell),
                        block,
                        label | {name: to_host(column) for name, column in columns.items()},
                    )
            watcher.advance(len(block))
        return concat(
            of_accumulator(sums.by_cluster(self._clusters, lists=self._lists), checkpoint=name)
            for name, sums in accumulators.items()
            if sums.cells()
        )
