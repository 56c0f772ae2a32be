"""What only recorded layers are asked: all layers of a sequence at once, layers with new experts, bare counts.

Axes: L layers, B sequences, J tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.disagreement import Disagreement
from moeprobe.metrics.analyses.first_layer import FirstLayer
from moeprobe.metrics.analyses.load import LoadAnalysis
from moeprobe.metrics.analyses.set_match import SetMatch
from moeprobe.metrics.analyses.touched import Differences, Touched
from moeprobe.metrics.analyses.unshared import Reasons, Unshared
from moeprobe.metrics.analyses.weights import WeightsAnalysis
from moeprobe.metrics.base import LayerAnalysis, ModelAnalysis
from moeprobe.metrics.token_kinds import Paired, by_position, by_token_kind, differ, patches
from moeprobe.probes.engine.batch_sums import sums_of_layer
from moeprobe.recorded.engine.kinds import Masks
from moeprobe.recordings.expert_map import ExpertMap, with_new_experts
from moeprobe.recordings.format import BY_TOKEN_ID
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_routing
from moeprobe.results.sums import Cell
from moeprobe.routing.record import LayerPair

# What tables call the tokens whose experts are not those of both sides.
_APART = "unshared"

Sums = dict[Cell, dict[str, Tensor]]


class Across:
    """Differences of the layers of some inputs, added layer by layer in forward order.

    Args:
        analyses: of the differences in all layers.
        images: whether layers of images are joined, too; of recorded ones they are not.
    """

    def __init__(
        self, analyses: Sequence[ModelAnalysis[Differences]] = (Touched(),), *, images: bool = False
    ) -> None:
        self._analyses, self._images = analyses, images
        self._layers: list[str] = []
        self._differs: list[Tensor] = []
        self._trials: list[Tensor] = []
        self._kinds: dict[str, Paired] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say: no layer of it is one of sequences."""
        return not self._layers

    def add(self, layer: str, pair: LayerPair, masks: Masks) -> None:
        """Add a layer; one that is not of sequences, has other tokens, or routes by token id, has no part.

        ``masks``: by kind, which tokens ``(B, T)`` it has.
        """
        if BY_TOKEN_ID in (pair.reference.router, pair.view.router):
            # Hash layers route by the token's id: equal tokens agree there by construction.
            return
        is_image = pair.view.grid is not None
        if (is_image and not self._images) or not Disagreement().applies(pair.view):
            return
        paired = patches(pair)
        # A layer with other tokens cannot be put beside the rest.
        if self._trials and paired.present.shape != self._trials[0].shape:
            return
        self._layers.append(layer)
        self._differs.append(differ(pair, paired))
        self._trials.append(paired.present)
        if not self._kinds:
            # Kinds of tokens are the same in all layers.
            every, prefix = paired, pair.view.num_prefix_tokens
            # Without tokens before the others, which are no part of these differences.
            kinds = {kind: pairs for kind, pairs in by_token_kind(pair).items() if pairs.view is every.view}
            of_media = {
                kind: replace(every, present=every.present & mask[:, prefix:]) for kind, mask in masks.items()
            }
            # Position is a kind as well: differences may begin late in a sequence.
            self._kinds = kinds | of_media | ({} if is_image else by_position(every))

    def join_layers(self, sums: Sums) -> Sums:
        """Return the sums of single layers, of all layers, and of the first layer to differ."""
        differs, trial = torch.stack(self._differs), torch.stack(self._trials).all(0)
        joined = dict(sums)
        for tokens, paired in self._kinds.items():
            of_kind = Differences(differs, trial & paired.present)
            joined[Cell(tokens=tokens)] = {
                name: column for analysis in self._analyses for name, column in analysis.sums(of_kind).items()
            }
            for cell in sums:
                if cell.tokens == tokens and cell.layer in self._layers:
                    first = FirstLayer(self._layers.index(cell.layer))
                    joined[cell] = sums[cell] | first.sums(of_kind)
        return joined


def sums_of_mapped(
    analyses: Sequence[LayerAnalysis], layer: str, pair: LayerPair, expert_map: ExpertMap
) -> tuple[LayerPair, dict[Cell, dict[str, Tensor]]]:
    """Return the pair of the tokens whose experts both sides have, and the sums of it.

    With them are the counts of the other tokens, and the agreement of their remaining experts (``unshared``). Gates
    are not compared: gates of removed experts are on one side alone.

    Raises:
        UserError: tokens moved, or experts choose.
    """
    if not pair.aligned or not pair.view.tokens_choose:
        raise UserError(
            f"{layer}: {option('expert_map')} is for tokens that choose, and stay in their places."
        )
    renumbered = with_new_experts(pair, expert_map.of(layer))
    reasons = Reasons(
        renumbered.removed, renumbered.merged, renumbered.added, patches(renumbered.pair).present
    )
    shared, unshared = renumbered.of(~reasons.unshared), renumbered.of(reasons.unshared)
    sums = sums_of_layer(
        [analysis for analysis in analyses if not isinstance(analysis, WeightsAnalysis)], layer, shared
    )
    # Which experts of a prefix token are removed is not asked.
    sums = {cell: columns for cell, columns in sums.items() if cell.tokens != "prefix"}
    token = pair.view.modality.token
    for cell in [cell for cell in sums if cell.tokens == token]:
        sums[cell] = sums[cell] | Unshared().sums(reasons)
    for cell, columns in sums_of_layer([SetMatch()], layer, unshared).items():
        if cell.tokens == token:
            sums[replace(cell, tokens=_APART)] = columns
    return shared, sums


def load_of(trace: TraceFile, name: str, ids: Sequence[str]) -> dict[Cell, dict[str, Tensor]]:
    """Return the sums of the load of a layer in some inputs of one trace."""
    layer = trace.layers[name]
    if not layer.load_only:
        routing = to_routing(trace.read(name, ids))
        # Counts are of all choices: only those of this side can be held against them.
        routing = replace(routing, ordered=routing.top_k < 2)
        patches = torch.arange(routing.selected.shape[1] - routing.num_prefix_tokens).expand(len(ids), -1)
        # The view is the trace itself: a load needs no reference.
        return sums_of_layer(
            [LoadAnalysis()], name, LayerPair(routing, routing, patches, patches, aligned=True)
        )
    # One expert has all of the load.
    if layer.num_experts < 2:
        return {}
    counts = torch.tensor(trace.counts(name, ids))
    cell = Cell(layer=name, router=layer.router, top_k=layer.top_k, tokens=TEXT.token)
    return {cell: LoadAnalysis.sums_of_counts(counts, top_k=layer.top_k)}
