"""What the layers of sequences say together: which tokens differ in some layer, and in which one first.

Axes: L layers, B sequences, J tokens.
"""

import torch
from torch import Tensor

from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.disagreement import Disagreement
from moeprobe.metrics.first_layer import FirstLayer
from moeprobe.metrics.token_kinds import Paired, by_position, by_token_kind, differ, patches
from moeprobe.metrics.touched import Differences, Touched
from moeprobe.results.sums import Cell
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.traces.format import BY_TOKEN_ID

Sums = dict[Cell, dict[str, Tensor]]


class Across:
    """Differences of the layers of some sequences, added layer by layer in forward order."""

    def __init__(self) -> None:
        self._layers: list[str] = []
        self._differs: list[Tensor] = []
        self._trials: list[Tensor] = []
        self._kinds: dict[str, Paired] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say: no layer of it is one of sequences."""
        return not self._layers

    def add(self, layer: str, pair: LayerPair) -> None:
        """Add a layer; one that is not of sequences, has other tokens, or routes by token id, has no part."""
        if BY_TOKEN_ID in (pair.reference.router, pair.view.router):
            return
        if pair.view.grid is not None or not Disagreement().applies(pair.view):
            return
        paired = patches(pair)
        if self._trials and paired.present.shape != self._trials[0].shape:
            return
        self._layers.append(layer)
        self._differs.append(differ(pair, paired))
        self._trials.append(paired.present)
        if not self._kinds:
            kinds = by_token_kind(pair)
            kinds.pop("prefix", None)
            self._kinds = kinds | by_position(kinds[TEXT.token])

    def joined(self, sums: Sums) -> Sums:
        """Return the sums of single layers with those of all of them, and with which one is the first to differ."""
        differs, trial = torch.stack(self._differs), torch.stack(self._trials).all(0)
        joined = dict(sums)
        for tokens, paired in self._kinds.items():
            of_kind = Differences(differs, trial & paired.present)
            joined[Cell(tokens=tokens)] = Touched().sums(of_kind)
            for cell in sums:
                if cell.tokens == tokens and cell.layer in self._layers:
                    first = FirstLayer(self._layers.index(cell.layer))
                    joined[cell] = sums[cell] | first.sums(of_kind)
        return joined
