"""Do corresponding patches choose the same experts? Table 4 of the PRC paper.

* top-1 match: same first expert;
* top-k match: same first, same second, ... in order;
* top-k set match: the same set of k, in any order (the paper's "order-agnostic").

Each comes with its chance levels: with the two sides' own marginals (pooled); where the grid does not move,
with the marginals of each patch position, since a position embedding alone can route; and with another patch of the
same image (image), since a router may know little but which image it is in. On request, with other images of the same
class (class; at the same position where the grid does not move), since a router may know little but the class.

The columns keep each image's choices (a few bytes per corresponding patch), because intervals of the chance levels
need them: sums alone do not say how often two independent images agree at the same position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.nulls import same_code, strata, tokens_of
from moeprobe.metrics.stats.bootstrap import Share
from moeprobe.metrics.token_kinds import Paired, by_token_kind, numbers, take_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting


_NULLS = ("pooled", "position", "image", "class")
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
    """Share of corresponding patches that choose the same experts, with its chance level and kappa."""

    measures = (
        TOP1_MATCH,
        TOP_K,
        TOP_K_SET,
    )
    signature = "trials"
    trial_lists = ("reference_selected", "view_selected")

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
        reference, view = (columns[f"{side}_selected"].astype(np.int64) for side in ("reference", "view"))
        trials = columns["trials"].astype(np.float64)
        image, place = np.nonzero(reference[..., 0] >= 0)
        num_places = reference.shape[1]
        label = columns["label"] if self._class_null else None
        nulls = strata(image, place, num_places=num_places, aligned=aligned, label=label)
        # A prefix token has no other in its image.
        tokens = tokens_of(columns, image, place, aligned=aligned) if num_places > 1 else None
        metrics: list[Estimator] = []
        for metric, depth, ordered in kinds(reference.shape[-1]):
            if metric.name not in columns:
                continue
            match = Share(columns[metric.name].astype(np.float64), trials)
            metrics.append(metric.raw(match, columns["trials"]))
            codes = encode(
                np.stack([reference[image, place], view[image, place]]), depth=depth, ordered=ordered
            )
            metrics += same_code(metric, codes, image, nulls, num_images=len(trials), tokens=tokens)
        return metrics


def kinds(top_k: int) -> list[tuple[Metric, int, bool]]:
    """Return (metric, k, ordered) for k <= min(K, 2) and k = K."""
    depths = sorted({1, min(top_k, 2), top_k})
    return [(TOP1_MATCH, 1, True)] + [
        (make(str(depth)), depth, ordered)
        for depth in depths
        if depth > 1
        for make, ordered in ((_in_order, True), (_as_set, False))
    ]


def encode(selected: NDArray[np.generic], *, depth: int, ordered: bool) -> NDArray[np.int64]:
    """Return one integer per row of choices ``(..., K)``, equal where the first ``depth`` choices are the same."""
    rows = selected[..., :depth].astype(np.int64)
    if not ordered:
        rows = np.sort(rows, axis=-1)
    base = int(rows.max(initial=0)) + 2  # choices run from -1
    if base**depth < 2**62:
        powers = base ** np.arange(depth, dtype=np.int64)
        return ((rows + 1) * powers).sum(-1)
    return np.unique(rows.reshape(-1, depth), axis=0, return_inverse=True)[1].reshape(rows.shape[:-1])


def _count(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    reference = take_tokens(pair.reference.selected, paired.reference)
    view = take_tokens(pair.view.selected, paired.view)
    trial = paired.present & (reference[..., 0] >= 0) & (view[..., 0] >= 0)
    reference, view = (side.masked_fill(~trial[..., None], -1) for side in (reference, view))
    columns = {"trials": trial.sum(1)}
    top_k, known = reference.shape[-1], pair.reference.ordered and pair.view.ordered
    for metric, depth, ordered in kinds(top_k):
        if depth == pair.view.num_experts and not ordered:
            continue  # every token chooses the set of all experts: no measurement
        if not known and (ordered or depth < top_k):
            continue  # which choice came first is not known
        first, second = reference[..., :depth], view[..., :depth]
        if not ordered:
            first, second = first.sort(-1).values, second.sort(-1).values
        columns[metric.name] = ((first == second).all(-1) & trial).sum(1)
    return columns | {"reference_selected": reference, "view_selected": view} | numbers(pair, paired)
