"""In which layer do affected tokens differ first?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.analyses.touched import Differences
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

FIRST_LAYER_SHARE = Metric(
    "first_layer_share",
    about="of the tokens that differ in any layer, the share that differs in this layer first",
    label="affected tokens that first differ here",
    short="first here",
)


class FirstLayer(ModelAnalysis[Differences]):
    """In which layer do tokens first differ? The share of each layer among the tokens that differ in any.

    Tokens 0 and 2 of three differ in the first layer, token 1 in the second alone: two of three first differ in layer
    0, one of three in layer 1:

    >>> import torch
    >>> from moeprobe.metrics.analyses.first_layer import FirstLayer
    >>> from moeprobe.metrics.analyses.touched import Differences
    >>> from moeprobe.metrics.by_hand import numbers
    >>> differs = torch.tensor([[[1, 0, 1]], [[1, 1, 0]]], dtype=torch.bool)
    >>> numbers(FirstLayer(1), Differences(differs, torch.ones(1, 3, dtype=torch.bool)))
    {'first_layer_share': 0.333}
    """

    measures = (FIRST_LAYER_SHARE,)
    signature = "first_anywhere"

    def __init__(self, layer: int = 0) -> None:
        self._layer = layer

    def sums(self, subject: Differences) -> dict[str, Tensor]:
        """Return how many tokens of each text differ in the layer and in none before, and how many do anywhere."""
        first = subject.first_layer
        return {
            "first_here": (first == self._layer).sum(1),
            "first_anywhere": (first < len(subject.differs)).sum(1),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        return [FIRST_LAYER_SHARE.share_of(columns["first_here"], columns["first_anywhere"])]
