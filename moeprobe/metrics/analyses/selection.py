"""How near are tokens to another set of experts, and how much of their gates is on the set that they have?

A set of K experts changes when the K-th and the (K+1)-th of the scores that the choice is read off change places: with
a bias where there is one, and without noise. Their difference is the *selection margin*. Softmax routers choose by
their gates; the logarithm of the ratio of two gates is the difference of their logits, which does not shrink with
small gates.

Where experts choose, a token's margin is the least that one of its scores must move to pass an expert's cut-off, the
scores of other tokens unmoved: above the expert's best token that it did not take, or below its worst that it took.

Axes: B images, T tokens, E experts, K choices, J pairs of tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.token_kinds import Paired, by_token_kind, slices

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

SELECTION_MARGIN = Metric(
    "selection_margin",
    about="the K-th score of a token less the (K+1)-th, on average, of the scores that the choice is read off; "
    "the gates where there are no others; where experts choose, the distance to the nearest expert's cut-off",
    label="K-th − (K+1)-th score",
    unit="other",
)
SELECTION_MARGIN_LOGIT = Metric(
    "selection_margin_logit",
    about="the K-th logit of a token less the (K+1)-th, on average, where the choice is read off a softmax",
    label="K-th − (K+1)-th logit",
    unit="other",
)
CHOSEN_MASS = Metric(
    "chosen_mass",
    about="the sum of the gates of a token's chosen experts, on average: 1 = no other expert has a share",
    label="gates of the set",
    unit="gate",
)
# Metric -> column with the tokens that have it. The first is in all sums, whether or not there are margins.
_COUNTED = {
    SELECTION_MARGIN: "selection_margins_counted",
    SELECTION_MARGIN_LOGIT: "selection_margins_logit_counted",
    CHOSEN_MASS: "chosen_masses_counted",
}


class SelectionAnalysis(LayerAnalysis):
    """The margin of the set of experts, by its scores and by its logits, and the sum of the set's gates.

    Two tokens that choose two of three experts: margins 0.4 − 0.1 and 0.3 − 0.2, in logits log 4 and log 1.5, and gates
    of 0.9 and 0.8 on their sets:

    >>> from moeprobe.metrics.analyses.selection import SelectionAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> tokens = route([[[0, 1], [0, 1]]], gates=[[[0.5, 0.4, 0.1], [0.5, 0.3, 0.2]]])
    >>> numbers(SelectionAnalysis(), pair(tokens))
    {'selection_margin': 0.2, 'selection_margin_logit': 0.896, 'chosen_mass': 0.85}
    """

    measures = tuple(_COUNTED)
    signature = _COUNTED[SELECTION_MARGIN]

    def applies(self, layer: LayerRouting) -> bool:
        """Whether there is a set of experts that is not all of them, with a margin or gates."""
        is_set = layer.tokens_choose and layer.top_k < layer.num_experts
        return has_margins(layer) or (is_set and layer.gates_sum_to_one)

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return, of each kind of tokens of the view, the summed margins and gates and how many tokens have them."""
        import torch

        layer = pair.view
        values = {SELECTION_MARGIN: selection_margins(layer), SELECTION_MARGIN_LOGIT: logit_margins(layer)}
        if layer.tokens_choose and layer.gates_sum_to_one:
            # Rounded gates may sum to a little over 1.
            mass = (layer.gates * layer.selected_mask).sum(-1).clamp_max(1)
            values[CHOSEN_MASS] = mass.masked_fill(~layer.valid, math.nan)
        sums = {}
        for kind, tokens in _kinds(pair).items():
            columns = {self.signature: torch.zeros_like(tokens.present[:, 0], dtype=torch.int64)}
            for metric, value in values.items():
                if value is not None:
                    of_kind = tokens.of_view(value)
                    has_value = tokens.present & of_kind.isfinite()
                    columns[metric.name] = of_kind.masked_fill(~has_value, 0).sum(1)
                    columns[_COUNTED[metric]] = has_value.sum(1)
            sums[kind] = columns
        return sums

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over tokens."""
        estimators = []
        for metric, denominator in _COUNTED.items():
            if metric.name in columns:
                # Margins, unlike sums of gates, may be above 1.
                estimate = metric.share_of if metric is CHOSEN_MASS else metric.mean_of
                estimators.append(estimate(columns[metric.name], columns[denominator]))
        return estimators


def can_flip(layer: LayerRouting) -> bool:
    """Whether the tokens of a layer choose sets that are not all experts, and compete for no capacity."""
    return layer.tokens_choose and has_margins(layer) and layer.places is None


def selection_scores(layer: LayerRouting, *, in_logits: bool = False) -> Tensor:
    """Return what the choice is read off ``(B, T, E)``, in double precision: large scores may differ by little.

    Args:
        layer: of a router whose scores are known.
        in_logits: the gates are a softmax's; return their logits, up to a constant of each token.
    """
    if in_logits:
        # A gate that is rounded to 0 has no logit.
        return layer.gates.double().log()
    return (layer.gates if layer.scores is None else layer.scores).double()


def choices_by_expert(layer: LayerRouting, *, first: int = 0) -> Tensor:
    """Return how many tokens of each image, from token ``first`` on, have each expert by choice ``(B, E)``."""
    return (layer.selected_mask & layer.valid[..., None])[:, first:].sum(1)


def runner_up(layer: LayerRouting) -> Tensor:
    """Return the best expert of each token ``(B, T)`` that it did not choose."""
    best = selection_scores(layer).masked_fill(layer.selected_mask, -math.inf).argmax(-1)
    return best.to(layer.selected.dtype)


def other_sets(layer: LayerRouting, keys: Tensor) -> Tensor:
    """Return sets of the experts with the highest keys ``(B, T, E)``, never the clean ones: these swap one expert."""
    import torch

    order = keys.argsort(-1, descending=True)
    selected = order[..., : layer.top_k].clone()
    marks = torch.zeros_like(layer.selected_mask).scatter(-1, selected, True)
    is_same = (marks == layer.selected_mask).all(-1)
    selected[..., -1] = torch.where(is_same, order[..., layer.top_k], selected[..., -1])
    return selected.to(layer.selected.dtype)


def has_margins(layer: LayerRouting) -> bool:
    """Return whether it is known how far the sets of a layer's tokens are from changing."""
    if layer.experts_choose:
        # With several images in a group, tokens of other images compete for the same places, and are not known here.
        return layer.has_scores and layer.every_gate and layer.group_images == 1
    if not layer.tokens_choose or layer.top_k >= layer.num_experts:
        return False
    return layer.scores is not None or _chosen_by_gates(layer)


def selection_margins(layer: LayerRouting) -> Tensor | None:
    """Return how far the set of each token is from changing ``(B, T)``; None where no token of the layer has that.

    A token whose experts are not the K highest has none (NaN): its choice was not read off these scores alone (within
    groups of experts, say).
    """
    if not has_margins(layer):
        return None
    scores = selection_scores(layer)
    return _cutoff_margins(layer, scores) if layer.experts_choose else _set_margins(layer, scores)


def logit_margins(layer: LayerRouting) -> Tensor | None:
    """Return the same in logits ``(B, T)``; None unless each token's set is read off its softmax."""
    of_softmax = layer.token_local and layer.gates_sum_to_one and layer.scores is None
    if not (of_softmax and layer.tokens_choose and has_margins(layer)):
        return None
    return _set_margins(layer, selection_scores(layer, in_logits=True))


def _chosen_by_gates(layer: LayerRouting) -> bool:
    """Return whether the gates say what the K-th and the (K+1)-th score of a token are."""
    # A recording may keep only the two highest gates, which are enough for K = 1 alone.
    return layer.has_scores and (layer.every_gate or (layer.top_k == 1 and layer.gates_sum_to_one))


def _set_margins(layer: LayerRouting, scores: Tensor) -> Tensor:
    """Return the K-th of scores ``(B, T, E)`` less the (K+1)-th."""
    selected = layer.selected_mask
    margin = scores.masked_fill(~selected, math.inf).amin(-1) - scores.masked_fill(selected, -math.inf).amax(
        -1
    )
    return _where(margin, layer.valid & (selected.sum(-1) == layer.top_k))


def _cutoff_margins(layer: LayerRouting, scores: Tensor) -> Tensor:
    """Return the distance of each token's scores ``(B, T, E)`` to the nearest expert's cut-off."""
    is_taken, valid = layer.selected_mask, layer.valid[..., None]
    worst_taken = scores.masked_fill(~(is_taken & valid), math.inf).amin(1, keepdim=True)
    best_left = scores.masked_fill(is_taken | ~valid, -math.inf).amax(1, keepdim=True)
    distance = (scores - best_left).where(is_taken, worst_taken - scores)
    return _where(distance.amin(-1), layer.valid)


def _where(margin: Tensor, has_margin: Tensor) -> Tensor:
    """Return margins with NaN where there is none, or the scores do not explain the choice."""
    return margin.masked_fill(~(has_margin & margin.isfinite() & (margin >= 0)), math.nan)


def _kinds(pair: LayerPair) -> dict[str, Paired]:
    """Return the tokens of the view by kind; of patches and prefix all there are, with a partner or without."""
    import torch

    layer, kinds = pair.view, by_token_kind(pair)
    token = torch.arange(layer.valid.shape[1], device=layer.valid.device).expand_as(layer.valid)
    for kind, part in slices(layer).items():
        kinds[kind] = Paired(token[:, part], token[:, part], layer.valid[:, part], first=part.start)
    return kinds
