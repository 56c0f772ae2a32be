"""The work of ``trace batches``: how many experts several tokens touch, and which a request never does.

Axes: B sequences, J tokens after the prefix, K choices of a token.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from moeprobe.metrics.analyses.asleep import Asleep
from moeprobe.metrics.analyses.distinct_experts import DistinctExperts
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.recorded.engine.input_sums import InputSums
from moeprobe.recorded.engine.sequences import RECORDED, SequencesWork, kinds_of
from moeprobe.recorded.trace_batches import TraceBatches
from moeprobe.recordings.pairs import NamedTrace
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Cell
from moeprobe.runtime.progress import Progress

# Tokens of the longest windows.
LONGEST_WINDOW = 4096


class TokenWindows(SequencesWork[TraceBatches]):
    """Traces of sequences, each measured by itself; the others are paired with the first by request."""

    def measure(self, progress: Progress) -> tuple[SumsStore, None]:
        """Return the sums per request, of all tokens."""
        return _WindowSums(self.traces, self.layers, self.ids).sums(progress), None

    def notes(self) -> list[str]:
        """Return sentences on requests that not all traces have, and on tokens whose part is not known."""
        return [*super().notes(), *self.unmarked()]


class _WindowSums(InputSums):
    """The sums per request of every trace."""

    in_processes = True
    has_gates = False

    def __init__(self, traces: Sequence[NamedTrace], layers: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__(traces, layers, ids, lists=())
        # Once, since the whole column is read for it.
        self._marked = [trace_view.trace.marks("generated") for trace_view in traces]

    def cell_of(self, trace_view: NamedTrace, cell: Cell) -> Cell:
        """Return the cell with the view of all recordings; its severity is the size of windows."""
        return replace(cell, view=RECORDED)

    def numbers_of_input(self) -> int:
        """Return how many numbers the sums of the longest request hold: experts by size of windows.

        Twice as many, since they have four times the bytes of choices, and are copied less often.
        """
        layers = self.traces[0].trace.layers
        numbers = sum(
            (1 + len(_sizes(longest))) * layers[layer].num_experts
            for layer, longest in self.num_tokens.items()
        )
        kinds = 1 + len(PARTS) * any(self._marked)
        return max(2 * kinds * numbers, 1)

    def of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some requests for each trace: experts of whole requests, then by the size of windows."""
        sums_of_traces: list[dict[Cell, dict[str, Tensor]]] = []
        for trace_view, is_marked in zip(self.traces, self._marked, strict=True):
            sums: dict[Cell, dict[str, Tensor]] = {}
            for name, longest in self.num_tokens.items():
                block = trace_view.trace.read(name, ids, num_tokens=longest)
                for kind, sequences in kinds_of(block, is_marked=is_marked):
                    cell = Cell(layer=name, router=block.layer.router, top_k=block.layer.top_k, tokens=kind)
                    sums[cell] = Asleep().sums(sequences)
                    for size in _sizes(longest - block.layer.num_prefix_tokens):
                        sums[replace(cell, severity=float(size))] = DistinctExperts(size).sums(sequences)
            sums_of_traces.append(sums)
        return sums_of_traces


def _sizes(longest: int) -> list[int]:
    """Return the tokens of windows: powers of two up to the longest sequence."""
    return [2**power for power in range(min(longest, LONGEST_WINDOW).bit_length())]
