"""Do corresponding patches choose the same experts? Table 4 of the PRC paper.

* top-1 match: same first expert;
* top-k match: same first, same second, ... in order;
* top-k set match: the same set of k, in any order (the paper's "order-agnostic").

Each comes with its chance levels: with the two sides' own marginals (pooled); where the grid does not move,
with the marginals of each patch position, since a position embedding alone can route; and with another patch of the
same image (image), since a router may know little but which image it is in. On request, with other images of the same
class (class; at the same position where the grid does not move), since a router may know little but the class. Where
token ids are known, with the same token in other texts (token), since a router may know little but the token.

The columns keep each image's choices (a few bytes per corresponding patch), because intervals of the chance levels
need them: sums alone do not say how often two independent images agree at the same position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis, image_cache
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.nulls import (
    ChosenPairs,
    against_chance,
    choices_of,
    chosen_sets,
    first_choices,
    levels,
)
from moeprobe.metrics.stats.alike import CODES, Alike, ascending, encode, same, same_sets
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.statistic import divide
from moeprobe.metrics.token_kinds import TOKEN_ID, Paired, by_token_kind, choices, num_experts, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


# Sets that have no more experts are sorted, larger ones are compared as bits.
_FEW = 2
_NULLS = ("pooled", "position", "image", "class", "token")
TOP1_MATCH = Metric(
    "top1_match",
    about="share of corresponding tokens that choose the same first expert",
    label="top-1 match",
    short="top-1",
    better="more",
    nulls=_NULLS,
    rank=1,
    agreement=True,
)

# For texts, whose lengths differ: a match over all tokens is ruled by the long ones.
MATCH_BY_INPUT = Metric(
    "match_by_input",
    about="share of corresponding tokens of a text that choose the same experts, in any order, averaged over texts: "
    "each text counts alike, however long; all other matches count tokens alike; where token ids are known",
    label="match, each text alike",
    better="more",
)


def _in_order(depth: str) -> Metric:
    return Metric(
        f"top{depth}_match",
        about=f"share of corresponding tokens that choose the same first {depth} experts, in the same order",
        label=f"top-{depth} match",
        short=f"top-{depth}",
        better="more",
        nulls=_NULLS,
    )


def _as_set(depth: str) -> Metric:
    return Metric(
        f"top{depth}_set_match",
        about=f"share of corresponding tokens that choose the same {depth} experts, in any order",
        label=f"top-{depth} match, any order",
        short=f"top-{depth} any order",
        better="more",
        nulls=_NULLS,
    )


TOP_K = MetricFamily("top{k}_match", r"top([2-9]|[1-9]\d+)_match", _in_order, example=("2",))
TOP_K_SET = MetricFamily("top{k}_set_match", r"top([2-9]|[1-9]\d+)_set_match", _as_set, example=("2",))


class Match(LayerAnalysis):
    """Share of corresponding patches that choose the same experts, with its chance level and kappa.

    Five images with two tokens each, of which eight of ten agree. Two tokens of different images agree in 40 of 80
    pairs, so κ = (0.8 − 0.5) / (1 − 0.5):

    >>> from moeprobe.metrics.analyses.match import Match
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> first = route([[0, 0], [0, 1], [1, 1], [0, 1], [0, 0]])
    >>> second = route([[0, 0], [0, 1], [1, 0], [0, 1], [0, 1]])
    >>> value = numbers(Match(), pair(first, second))
    >>> value["top1_match"], value["top1_match_chance pooled"], value["top1_match_kappa pooled"]
    (0.8, 0.5, 0.6)
    """

    measures = (
        TOP1_MATCH,
        TOP_K,
        TOP_K_SET,
        MATCH_BY_INPUT,
    )
    signature = "trials"
    trial_lists = ("reference_selected", "view_selected", TOKEN_ID)

    def __init__(self, *, class_null: bool = False) -> None:
        self._class_null = class_null

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, and there is more than one."""
        return layer.tokens_choose and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return matches and trials per image, for patches (also by what they show, if known) and prefix tokens."""
        return {tokens: _count(pair, paired) for tokens, paired in by_token_kind(pair).items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return match, chance and kappa for each kind of match."""
        options = {"aligned": aligned, "class_null": self._class_null}
        pairs = choices_of(columns, **options)
        # From -1, no choice, up: one more than there are experts.
        base = num_experts(columns) + 1
        metrics: list[Estimator] = []
        for metric, depth, ordered in kinds(pairs.sides[0].shape[-1]):
            if metric.name not in columns:
                continue
            metrics.append(metric.share_of(columns[metric.name], columns["trials"]))
            if depth == 1:
                metrics += against_chance(metric, first_choices(columns, **options)[1])
                continue
            if ordered or depth == _FEW:
                leading = [side[:, :depth] if ordered else ascending(side[:, :depth]) for side in pairs.sides]
                codes = (encode(row + 1, base=base) for row in leading)
                similarity = same(*codes, size=min(base**depth, CODES))
            else:
                similarity = _equal_sets(columns, pairs)
            of_metric = Trials(
                pairs.image,
                similarity,
                num_images=pairs.num_images,
                cache=image_cache(columns, (metric.name, aligned)),
            )
            metrics += against_chance(metric, levels(of_metric, pairs.nulls))
        return metrics + _by_input(columns, top_k=pairs.sides[0].shape[-1])


def _by_input(columns: Columns, *, top_k: int) -> list[Estimator]:
    """Return the match of what processes a token with each text alike; nothing of images, which have as many tokens.

    Which columns there are decides, and not the lengths: blocks of a run must all have it or none.
    """
    deciding = TOP_K_SET.make(str(top_k)).name if top_k > 1 else TOP1_MATCH.name
    if TOKEN_ID not in columns or deciding not in columns:
        return []
    trials = columns["trials"]
    shares = divide(columns[deciding].astype(np.float64), trials, empty=0.0)
    return [MATCH_BY_INPUT.share_of(shares, (trials != 0).astype(np.int64))]


def _equal_sets(columns: Columns, pairs: ChosenPairs) -> Alike:
    """Return whether the sets of all that two tokens chose are equal."""
    sides = chosen_sets(columns)
    if len(pairs.image) < len(sides[0].sizes):
        rows = pairs.image * columns["reference_selected"].shape[1] + pairs.position
        sides = sides[0].take(rows), sides[1].take(rows)
    return same_sets(sides[0].words, sides[1].words, num_experts=num_experts(columns))


def kinds(top_k: int) -> list[tuple[Metric, int, bool]]:
    """Return (metric, k, ordered) for k <= min(K, 2) and k = K."""
    depths = sorted({1, min(top_k, 2), top_k})
    return [(TOP1_MATCH, 1, True)] + [
        (make(str(depth)), depth, ordered)
        for depth in depths
        if depth > 1
        for make, ordered in ((_in_order, True), (_as_set, False))
    ]


def _count(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    selections = choices(pair, paired)
    reference, view = selections.values()
    trial = (reference[..., 0] >= 0) & (view[..., 0] >= 0)
    columns = {"trials": trial.sum(1)}
    top_k, is_ordered = reference.shape[-1], pair.reference.ordered and pair.view.ordered
    for metric, depth, ordered in kinds(top_k):
        if depth == pair.view.num_experts and not ordered:
            continue  # every token chooses the set of all experts: no measurement
        if not is_ordered and (ordered or depth < top_k):
            continue  # which choice came first is not known
        first, second = reference[..., :depth], view[..., :depth]
        if not ordered:
            first, second = first.sort(-1).values, second.sort(-1).values
        columns[metric.name] = ((first == second).all(-1) & trial).sum(1)
    return columns | selections | numbers(pair, paired)
