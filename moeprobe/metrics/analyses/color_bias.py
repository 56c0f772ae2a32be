"""Do experts go by color or by place? On checkerboards whose cells are patches (Teo, section 4.2.1 and Fig. 12).

* ``same_color``: two patches of one color at different places of a board have the same expert;
* ``same_place``: a place has the same expert when the board's two colors are exchanged.

Each comes with κ, pooled: how often two patches of boards of other colors have the same expert. Where tokens share
experts, the same expert is Σ_e of the products of their shares. A board and the one with its colors exchanged have the
same label and are one observation: intervals are over pairs of colors.

Axes: B images, P patches, E experts, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.entries import Entries
from moeprobe.metrics.stats.kappa import Kappa, MeanProduct
from moeprobe.metrics.stats.statistic import Array, Share, Totals
from moeprobe.metrics.token_experts import CHOICE, color_bins, entries, experts, knows_experts
from moeprobe.metrics.token_kinds import patches

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

SAME_COLOR = Metric(
    "same_color",
    about="share of pairs of patches of one color, at different places of a checkerboard, that have the same expert",
    label="same color, other place: same expert",
    noun="share of pairs of patches of one color with the same expert",
    nulls=("pooled",),
)
SAME_PLACE = Metric(
    "same_place",
    about="share of the places of checkerboards that keep their expert when the two colors are exchanged",
    label="same place, colors exchanged: same expert",
    noun="share of places that keep their expert when the colors are exchanged",
    nulls=("pooled",),
)


class ColorBias(LayerAnalysis):
    """On checkerboards: do patches of one color share an expert, and do places keep theirs if colors are exchanged?

    A black and white board, and another one in gray and white, each with its colors exchanged. White patches go to
    expert 1, all others to expert 0, so patches of one color share an expert and no place keeps its own. Half of the
    patches of other boards have the same expert: κ = (1 − 0.5) / (1 − 0.5), and (0 − 0.5) / (1 − 0.5):

    >>> import torch
    >>> from moeprobe.metrics.analyses.color_bias import ColorBias
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> board = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0.5, 1, 0.5, 1], [1, 0.5, 1, 0.5]])
    >>> boards = pair(route((board == 1).int().tolist()), pixels=board[:, None, None].expand(-1, 3, -1, -1))
    >>> value = numbers(ColorBias(), boards, labels=[0, 0, 1, 1])
    >>> [value[name] for name in ("same_color", "same_color_kappa pooled", "same_place", "same_place_kappa pooled")]
    [1.0, 1.0, 0.0, -1.0]
    """

    measures = (SAME_COLOR, SAME_PLACE)
    signature = "board_color"
    trial_lists = (f"board_{CHOICE}", "board_color")

    def applies(self, layer: LayerRouting) -> bool:
        """Whether there are several experts, and it is known which of them a patch of an image has."""
        return knows_experts(layer) and layer.grid is not None

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the experts of the patches, and the bins of their colors; nothing of routing without pixels."""
        colors = color_bins(pair)
        if colors is None:
            return {}
        columns = experts(pair.view, patches(pair), name="board")
        return {pair.view.modality.token: columns | {"board_color": colors}}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return both shares with their κ; where no labels are known each board is one of its own."""
        tokens, number = entries(columns, name="board")
        colors = columns["board_color"].astype(np.int64)
        labels = columns.get("label", np.arange(len(colors))).astype(np.int64)
        boards = _Boards(tokens, colors, labels, number)
        summed, patches_of = boards.summed, boards.summed.sum(1)
        chance = MeanProduct(summed, summed, patches_of, patches_of)
        estimators = []
        for metric, (same, pairs) in ((SAME_COLOR, boards.same_color()), (SAME_PLACE, boards.same_place())):
            share = Share(same, pairs.astype(np.float64))
            estimators += [
                metric.raw(share, pairs),
                *metric.against("pooled", chance, _Beyond(share, chance), pairs),
            ]
        return estimators


class _Beyond(Kappa):
    """κ of a share that may be far below chance: there the error of chance, taken for its own, says nothing of it."""

    def bounds(self, totals: Totals | None, error: float, images: int) -> None:  # type: ignore[override]
        """Return None: resamples give the interval."""


class _Boards:
    """Boards by label: what all boards of a label come to stands in the row of its first one, and 0 in the others."""

    def __init__(
        self, tokens: Entries, colors: NDArray[np.int64], labels: NDArray[np.int64], num_experts: int
    ) -> None:
        self._shares = np.zeros((*colors.shape, num_experts))
        self._shares[tokens.image, tokens.token, tokens.expert] = tokens.weight
        self._colors = colors
        self._present: NDArray[np.bool_] = np.asarray(self._shares.any(-1))
        _, first, number = np.unique(labels, return_index=True, return_inverse=True)
        self._row = first[number]
        self._order = np.argsort(self._row, kind="stable")
        self.summed = self._by_label(self._shares.sum(1))

    def same_color(self) -> tuple[Array, NDArray[np.int64]]:
        """Return, by board ``(n,)``, the pairs of patches of one color with the same expert, and all of them."""
        same, pairs = np.zeros(len(self._colors)), np.zeros(len(self._colors))
        for color in np.unique(self._colors):
            of_color = (self._colors == color) & self._present
            color_shares = np.where(of_color[..., None], self._shares, 0.0)
            same += np.square(color_shares.sum(1)).sum(1) - np.square(color_shares).sum((1, 2))
            pairs += of_color.sum(1) * (of_color.sum(1) - 1)
        return self._by_label(same), self._by_label(pairs).astype(np.int64)

    def same_place(self) -> tuple[Array, NDArray[np.int64]]:
        """Return the places with the same expert on two boards of a label, and all where their colors differ."""
        same, pairs = np.zeros(len(self._colors)), np.zeros(len(self._colors))
        for shift in range(1, int(np.bincount(self._row).max(initial=1))):
            board, partner = self._order[:-shift], self._order[shift:]
            apart = (
                (self._colors[board] != self._colors[partner]) & self._present[board] & self._present[partner]
            )
            apart &= (self._row[board] == self._row[partner])[:, None]
            agreement = (self._shares[board] * self._shares[partner]).sum(-1)
            same[board] += np.where(apart, agreement, 0.0).sum(1)
            pairs[board] += apart.sum(1)
        return self._by_label(same), self._by_label(pairs).astype(np.int64)

    def _by_label(self, values: Array) -> Array:
        sums = np.zeros_like(values, dtype=np.float64)
        np.add.at(sums, self._row, values)
        return sums
