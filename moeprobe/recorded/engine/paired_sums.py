"""The sums per input of a trace by itself, and of each other trace beside the first."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from moeprobe.metrics.analyses.weights import WeightsAnalysis
from moeprobe.metrics.base import LayerAnalysis, trial_lists
from moeprobe.probes.engine.batch_sums import sums_of_layer
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.recorded.engine.across import Across, load_of, sums_of_mapped
from moeprobe.recorded.engine.describe import weights_fit
from moeprobe.recorded.engine.input_sums import InputSums
from moeprobe.recorded.engine.kinds import Sums, kinds_in, masks_of, of_kind, pairs_by_kind
from moeprobe.recordings.expert_map import ExpertMap
from moeprobe.recordings.pairs import NamedTrace, common_prefix, knows_weights, pair
from moeprobe.recordings.reading import Block
from moeprobe.results.sums import Cell
from moeprobe.routing.record import LayerPair

# Not measured on pairs of traces, but over all layers together or by a map of experts (``across``).
_ACROSS = ("touched", "first_layer", "unshared")
# Measured on single traces.
_ALONE = ("confidence", "selection", "load", "unserved", "dropped", "experts_per_token")
# From a layer, the names of some inputs and their pair to the pair with other numbers of experts.
Renumber = Callable[[str, Sequence[str], LayerPair], LayerPair]


class PairedSums(InputSums):
    """The sums per input of every trace; of the first, alone, only on request.

    Args:
        traces: the first is the reference.
        layers: which all traces have.
        ids: inputs that all traces have.
        analyses: of the question; analyses over all layers together, or by a map of experts, are skipped here.
        expert_map: which experts became which.
        alone: whether the first trace is measured by itself.
        renumber: gives a pair the numbers of experts that are compared; None = as in the traces.

    Of the tokens that are left out, those after the common beginning are counted.
    """

    def __init__(
        self,
        traces: Sequence[NamedTrace],
        layers: Sequence[str],
        ids: Sequence[str],
        *,
        analyses: Sequence[str],
        expert_map: ExpertMap | None = None,
        alone: bool = True,
        renumber: Renumber | None = None,
    ) -> None:
        self._of_pairs = make_analyses([name for name in analyses if name not in _ACROSS])
        self._of_one = make_analyses(_ALONE) if alone else ()
        super().__init__(traces, layers, ids, lists=trial_lists(self._of_pairs))
        self._expert_map, self._renumber = expert_map, renumber
        self._marked = {
            name
            for name in ("generated", "token_ids")
            if any(trace_view.trace.marks(name) for trace_view in traces)
        }
        self._kinds = kinds_in([trace_view.trace for trace_view in traces])

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
                    knows_weights(trace_block.layer)
                    and knows_weights(blocks[0].layer)
                    and weights_fit(longest)
                )
                if number and self._renumber is not None:
                    subject = self._renumber(layer, ids, subject)
                analyses = [
                    analysis
                    for analysis in (self._of_pairs if number else self._of_one)
                    if isinstance(analysis, LayerAnalysis)
                    and (has_weights or not isinstance(analysis, WeightsAnalysis))
                ]
                # Kinds are of sequences, whose tokens stay in their places.
                masks = masks_of(blocks, self._kinds) if subject.aligned else {}
                sums_of = partial(_sums_of, analyses, layer, expert_map=self._expert_map if number else None)
                by_kind = [of_kind(sums_of(part)[1], kind) for kind, part in pairs_by_kind(subject, masks)]
                subject, sums = sums_of(subject)
                for cell_sums in (sums, *by_kind):
                    sums_of_traces[number] |= cell_sums
                if number and subject.aligned:
                    across[number].add(layer, subject, masks)
                    if layer == next(iter(self.num_tokens)):
                        self._count(trace_view, blocks[0], trace_block)
        return [
            sums if layers_across.empty else layers_across.join_layers(sums)
            for sums, layers_across in zip(sums_of_traces, across, strict=True)
        ]

    def _count(self, trace_view: NamedTrace, reference: Block, view: Block) -> None:
        """Count the tokens that are left out."""
        num_common = int(common_prefix(reference, view).sum())
        num_left_out = [int(block.num_tokens.sum()) - num_common for block in (reference, view)]
        self.add_left_out({trace_view.label: num_left_out})


def _sums_of(
    analyses: Sequence[LayerAnalysis], layer: str, pair: LayerPair, *, expert_map: ExpertMap | None
) -> tuple[LayerPair, Sums]:
    """Return the pair that is compared and its sums; by a map, it has new experts and fewer tokens."""
    if expert_map is not None:
        return sums_of_mapped(analyses, layer, pair, expert_map)
    return pair, sums_of_layer(analyses, layer, pair)
