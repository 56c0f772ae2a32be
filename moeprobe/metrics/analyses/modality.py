"""How differently do the image tokens and the words of one sequence use the experts? For vision-language models.

``modality_divergence`` is the Jensen-Shannon divergence, in bits, between two distributions over the experts:
of the choices of image tokens, and of the choices of the words behind the picture. 0 = both use the experts alike,
1 = no expert in common. All K choices count. Both kinds weigh the same, so it is also what a token's expert says of the
token's kind.

Few tokens make any two distributions look different. So the mean over permutations is subtracted: each exchanges the
kinds between the tokens of a picture's sequence, in every picture anew. Both parts stand beside.

The prompt is the same in every picture: the number is about these words. Source: Lin 1991.

Axes: B pictures, P image tokens, W words, K choices, n pictures of a whole run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.modality import WORDS
from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.entries import Entries
from moeprobe.metrics.stats.information import Association, InformationPart
from moeprobe.metrics.token_kinds import EXPERTS, by_token_kind, num_experts, slices

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

DIVERGENCE = Metric(
    "modality_divergence",
    about="Jensen-Shannon divergence, in bits, between the experts of image tokens and of the words behind the "
    "picture, minus its mean where the kinds of each sequence's tokens are exchanged: 0 = alike, 1 = no expert in "
    "common",
    label="image tokens and words apart",
    noun="divergence of the experts of image tokens and words",
    unit="other",
)
PLAIN = Metric(
    "modality_divergence_plain",
    about="Jensen-Shannon divergence, in bits, between the experts of image tokens and of the words behind the "
    "picture; few tokens make it larger",
    label="plain",
    unit="other",
    below=DIVERGENCE.name,
    secondary=True,
)
PERMUTED = Metric(
    "modality_divergence_permuted",
    about="mean of modality_divergence_plain with the kinds exchanged between the tokens of a sequence, in every "
    "picture anew: its noise floor",
    label="by permutation",
    unit="other",
    below=DIVERGENCE.name,
    secondary=True,
)
_PARTS = {"beyond": DIVERGENCE, "plain": PLAIN, "permuted": PERMUTED}
# Columns: what the tokens of a sequence chose, image tokens first, and how many of these there are.
_SELECTED, _IMAGE_TOKENS = "modality_selected", "modality_image_tokens"


class ModalityAnalysis(LayerAnalysis):
    """How far apart the experts of image tokens and of the words in the same sequence are.

    Two pictures with two image tokens each, which have expert 0, and a prompt of two words, which have expert 1. No
    expert is common: 1 bit. With the kinds exchanged, 0.139 bits are left on average, and 0.141 of the 200 exchanges:

    >>> from moeprobe.metrics.analyses.modality import ModalityAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> sequences = route([[1, 1, 0, 0]] * 2, num_prefix_tokens=2, leading=(("text", 2),))
    >>> value = numbers(ModalityAnalysis(), pair(sequences))
    >>> value["modality_divergence_plain"], value["modality_divergence_permuted"]
    (1.0, 0.141)
    """

    measures = (DIVERGENCE, PLAIN, PERMUTED)
    signature = "modality_tokens"
    trial_lists = (_SELECTED,)

    def applies(self, layer: LayerRouting) -> bool:
        """Whether there are words beside a picture, whose tokens choose some of several experts."""
        return layer.tokens_choose and layer.top_k < layer.num_experts and WORDS in slices(layer)

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return what the view's image tokens and words chose."""
        import torch

        kinds = by_token_kind(dataclasses.replace(pair, region=None))
        patch = pair.view.modality.token
        selected = [
            paired.of_view(pair.view.selected).masked_fill(~paired.present[..., None], -1)
            for paired in (kinds[patch], kinds[WORDS])
        ]
        every = torch.cat(selected, 1)
        unit = torch.ones(len(every), dtype=torch.int64, device=every.device)
        columns = {
            _SELECTED: every,
            _IMAGE_TOKENS: unit * selected[0].shape[1],
            self.signature: (every >= 0).any(-1).sum(1),
            EXPERTS: unit * pair.view.num_experts,
        }
        return {patch: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the divergence and its parts."""
        entries, words = choices_of(columns)
        association = Association(
            entries,
            np.broadcast_to(words, (len(columns[self.signature]), len(words))),
            num_experts=num_experts(columns),
            within=True,
            balanced=True,
        )
        if association.scale == 0:
            return []
        trials = columns[self.signature]
        return [metric.raw(InformationPart(association, part), trials) for part, metric in _PARTS.items()]


def choices_of(columns: Columns) -> tuple[Entries, NDArray[np.bool_]]:
    """Return the choices of each sequence's tokens, as shares of a token, and which tokens ``(P + W,)`` are words."""
    selected = columns[_SELECTED].astype(np.int64)
    image, token, choice = np.nonzero(selected >= 0)
    per_token = (selected >= 0).sum(-1)
    entries = Entries(image, token, selected[image, token, choice], 1 / per_token[image, token])
    return entries, np.arange(selected.shape[1]) >= int(columns[_IMAGE_TOKENS].max(initial=0))
