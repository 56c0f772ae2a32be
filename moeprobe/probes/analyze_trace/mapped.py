"""The sums of a layer of two checkpoints with different experts, by a map of the old ones to the new ones."""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.set_match import SetMatch
from moeprobe.metrics.token_kinds import patches
from moeprobe.metrics.unshared import Reasons, Unshared
from moeprobe.metrics.weights import Weights
from moeprobe.probes.engine.batch_sums import sums_of_layer
from moeprobe.results.sums import Cell
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.traces.expert_map import ExpertMap, with_new_experts

# What tables call the tokens whose experts are not those of both sides.
_APART = "unshared"


def sums_of_mapped(
    analyses: Sequence[LayerAnalysis], layer: str, pair: LayerPair, expert_map: ExpertMap
) -> tuple[LayerPair, dict[Cell, dict[str, Tensor]]]:
    """Return the pair of the tokens whose experts both sides have, and the sums of it.

    With them are the counts of the other tokens, and how far what is left of their experts agrees (``unshared``). Gates
    are not compared: those of removed experts are on one side alone.

    Raises:
        UserError: tokens moved, or experts choose.
    """
    if not pair.aligned or not pair.view.tokens_choose:
        raise UserError(f"{layer}: --expert-map is for tokens that choose, and stay in their places.")
    found = with_new_experts(pair, expert_map.of(layer))
    reasons = Reasons(found.removed, found.merged, found.added, patches(found.pair).present)
    shared, rest = found.of(~reasons.unshared), found.of(reasons.unshared)
    sums = sums_of_layer([one for one in analyses if not isinstance(one, Weights)], layer, shared)
    # Which experts of a prefix token are removed is not asked.
    sums = {cell: columns for cell, columns in sums.items() if cell.tokens != "prefix"}
    token = pair.view.modality.token
    for cell in [cell for cell in sums if cell.tokens == token]:
        sums[cell] = sums[cell] | Unshared().sums(reasons)
    for cell, columns in sums_of_layer([SetMatch()], layer, rest).items():
        if cell.tokens == token:
            sums[dataclasses.replace(cell, tokens=_APART)] = columns
    return shared, sums
