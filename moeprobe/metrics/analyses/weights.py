"""How far do the weights of a token move? For every router: what the combination gives each expert for it.

* ``weight_distance``: Jensen-Shannon distance of the weights, each side's divided by their sum: the root of the
  divergence in bits, 0 = the same, 1 = no expert in common;
* ``weight_cosine``: cosine of the weights, 1 = the same up to a factor, 0 = no expert in common.

A pair of which a side has no weights (no expert took the token, or all dropped it) is no trial; their share of all
pairs is ``unweighted``, given where that can be.

Chance. The mean cosine of independent tokens is the product of two mean vectors, so sums determine it: pooled, and
within the image (another patch of the same image). The distance has no such sum, so it has only the chance level within
the image. kappa of the distance is 1 − distance / chance, so that 1 is stable and 0 is chance, as everywhere.
At a position there is no null here: it would take every token's weights.

Source: Lin 1991, Endres and Schindelin 2003. Axes: B images, J pairs of tokens, E experts, n images of a whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.inputs.modality import AROUND, ORDINARY
from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.chance.trials import per_trial
from moeprobe.metrics.stats.divergence import FewShares, jensen_shannon_distance, shares
from moeprobe.metrics.stats.kappa import Complement, Kappa, MeanProduct
from moeprobe.metrics.stats.statistic import Array, Share
from moeprobe.metrics.token_kinds import (
    Paired,
    ProductsOfOthers,
    by_token_kind,
    double,
    pairs_apart,
    selected_experts,
    sharing,
)

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


# Rows of K entries are quicker compared as such where K² is at most so many times E.
FEW_ENTRIES = 2

WEIGHT_COSINE = Metric(
    "weight_cosine",
    about="cosine of the combine weights of corresponding tokens: 1 = the same up to a factor, 0 = no expert in common",
    label="cosine of the weights",
    short="weight cosine",
    better="more",
    nulls=("pooled", "image"),
    rank=4,
    agreement=True,
    secondary=True,
    one_expert=True,
)
WEIGHT_DISTANCE = Metric(
    "weight_distance",
    about="Jensen-Shannon distance (base 2) of the combine weights of corresponding tokens, each side's divided by "
    "their sum: 0 = the same, 1 = no expert in common",
    label="JS distance of the weights",
    short="JS distance",
    better="less",
    unit="distance",
    nulls=("image",),
    rank=22,
    along="others",
    secondary=True,
    # It has no pooled kappa of its own.
    collapse_of="weight_cosine",
    one_expert=True,
)
UNWEIGHTED = Metric(
    "unweighted",
    about="share of pairs in which a side has no weights, which weight_cosine and weight_distance leave out",
    label="pairs without weights",
)


class WeightsAnalysis(LayerAnalysis):
    """Jensen-Shannon distance and cosine of the combine weights of corresponding tokens.

    Weights (0.6, 0.4) of two experts become (0.4, 0.6), with a cosine of 0.48 / 0.52. Their mean is (0.5, 0.5), and the
    divergence 0.6 log₂ 1.2 + 0.4 log₂ 0.8 = 0.029 bits, whose root is the distance:

    >>> from moeprobe.metrics.analyses.weights import WeightsAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> first, second = route([[[0, 1]]], gates=[[[0.6, 0.4]]]), route([[[1, 0]]], gates=[[[0.4, 0.6]]])
    >>> value = numbers(WeightsAnalysis(), pair(first, second))
    >>> value["weight_cosine"], value["weight_distance"]
    (0.923, 0.17)
    """

    measures = (
        WEIGHT_COSINE,
        WEIGHT_DISTANCE,
        UNWEIGHTED,
    )
    signature = "weight_pairs"
    per_expert = "weight_reference"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether there is more than one expert to weight."""
        return layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return summed distances, cosines and unit vectors per image, for patches and prefix tokens."""
        return {
            tokens: _sums(pair, paired)
            for tokens, paired in by_token_kind(pair).items()
            if tokens in (*ORDINARY, *AROUND)
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return both means with their chance levels and kappa."""
        trials = columns["weight_trials"].astype(np.int64)
        number = trials.astype(np.float64)
        distance, cosine = (columns[name].astype(np.float64) for name in ("weight_distance", "weight_cosine"))
        reference, view = (columns[f"weight_{side}"].astype(np.float64) for side in ("reference", "view"))
        mean_cosine = Share(cosine, number)
        metrics = [
            WEIGHT_COSINE.raw(mean_cosine, trials),
            *WEIGHT_COSINE.chance_and_kappa(
                "pooled", MeanProduct(reference, view, number, number), mean_cosine, trials
            ),
        ]
        other_pairs = _of_others(columns, aligned=aligned)
        if other_pairs is not None:
            pairs, *totals = other_pairs
            has_others = pairs > 0
            by_chance, apart = (per_trial(total, pairs, number) for total in totals)
            cosine_share, distance_share = (
                Share(total * has_others, number * has_others) for total in (cosine, distance)
            )
            metrics += WEIGHT_COSINE.chance_and_kappa("image", by_chance, cosine_share, trials * has_others)
        metrics.append(WEIGHT_DISTANCE.raw(Share(distance, number), trials))
        if other_pairs is not None:
            kappa = Kappa(Complement(distance_share), Complement(apart))
            metrics += WEIGHT_DISTANCE.against("image", apart, kappa, trials * has_others)
        if "unweighted" in columns:
            metrics.append(UNWEIGHTED.share_of(columns["unweighted"], columns["weight_pairs"]))
        return metrics


def _of_others(columns: Columns, *, aligned: bool) -> tuple[Array, Array, Array] | None:
    """Return the pairs of trials without a token in common, and their summed cosines and distances, ``(n,)`` each.

    A prefix token has no other in its image. Runs from before the pairs were counted have them only where nothing
    moved: there no two trials share a patch.
    """
    if "weight_others" in columns:
        pairs, cosine, distance = (
            columns[f"weight_{name}"].astype(np.float64)
            for name in ("others", "cosine_others", "distance_others")
        )
        return pairs, cosine, distance
    if not aligned or "weight_distance_others" not in columns:
        return None
    trials, cosine, distance, reference, view = (
        columns[f"weight_{name}"].astype(np.float64)
        for name in ("trials", "cosine", "distance_others", "reference", "view")
    )
    return trials * (trials - 1), (reference * view).sum(1) - cosine, distance


def _sums(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    if pair.reference.top_k == pair.view.top_k == 1:
        return _sums_of_single(pair, paired)
    sides = [paired.of_reference(pair.reference.weights), paired.of_view(pair.view.weights)]
    weighted = [(side > 0).any(-1) for side in sides]
    trial = paired.present & weighted[0] & weighted[1]
    # Masked, not multiplied: padding may hold NaN.
    reference, view = (side.masked_fill(~trial[..., None], 0) for side in sides)
    unit_reference, unit_view = (_unit(double(side)) for side in (reference, view))
    # Exactly 1 where nothing has moved: sums of rounded products would call one unmoved router better than another.
    unmoved = (reference == view).all(-1) & trial
    cosine = (unit_reference * unit_view).sum(-1).masked_fill(unmoved.to(unit_reference.device), 1)
    parts = [shares(side) for side in (reference, view)]
    apart = double(jensen_shannon_distance(*parts).masked_fill(~trial, 0))
    columns = {
        "weight_pairs": paired.present.sum(1),
        "weight_trials": trial.sum(1),
        "weight_distance": apart.sum(1),
        "weight_cosine": cosine.sum(1),
        "weight_reference": unit_reference.sum(1),
        "weight_view": unit_view.sum(1),
    }
    if pair.view.top_k > 0:
        columns["unweighted"] = (paired.present & ~trial).sum(1)
    if trial.shape[1] > 1:
        # Places without any trial (of texts that are shorter) add nothing.
        has_trial = trial.any(0)
        trials = Paired(paired.reference[:, has_trial], paired.view[:, has_trial], trial[:, has_trial])
        units = [side[:, has_trial] for side in (unit_reference, unit_view)]
        every = double(trials.present[..., None])
        products = ProductsOfOthers(trials, aligned=pair.aligned)
        number, cosine = products.sums(every, every), products.sums(*units)
        columns |= {
            "weight_others": number.long(),
            "weight_distance_others": _distances_of_others(
                trials, [side[:, has_trial] for side in parts], top_k=_entries(pair)
            ),
            "weight_cosine_others": cosine,
        }
    return columns


def _sums_of_single(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    """Return the same where a token has one expert at most: unit vectors are one-hot, so that all of it is counted."""
    experts = [side[..., 0].long().clamp_min(0) for side in selected_experts(pair, paired)]
    weighted = [_has_weight(layer) for layer in (pair.reference, pair.view)]
    trial = paired.present & paired.of_reference(weighted[0]) & paired.of_view(weighted[1])
    same = trial & (experts[0] == experts[1])
    number, matches = trial.sum(1), same.sum(1)
    none = number.new_zeros(len(number), pair.view.num_experts)
    reference, view = (none.scatter_add(1, side, trial.long()) for side in experts)
    columns = {
        "weight_pairs": paired.present.sum(1),
        "weight_trials": number,
        # One expert is at a distance of 1 from another.
        "weight_distance": double(number - matches),
        "weight_cosine": double(matches),
        "weight_reference": double(reference),
        "weight_view": double(view),
        "unweighted": (paired.present & ~trial).sum(1),
    }
    if trial.shape[1] > 1:
        shared = sharing(replace(paired, present=trial), aligned=pair.aligned)
        other_pairs = number.square() - (shared * trial).sum(1)
        other_matches = (reference * view).sum(1) - (shared * same).sum(1)
        columns |= {
            "weight_others": other_pairs,
            "weight_distance_others": double(other_pairs - other_matches),
            "weight_cosine_others": double(other_matches),
        }
    return columns


def _has_weight(layer: LayerRouting) -> Tensor:
    """Return whether the one expert that a token ``(B, T)`` chose gives it any weight."""
    experts = layer.selected.long()
    gate = layer.gates.gather(-1, experts.clamp_min(0))
    return ((gate > 0) & layer.processed & (experts >= 0))[..., 0]


def _entries(pair: LayerPair) -> int:
    """Return how many weights a token has at most, on either side; 0 where it may have one for every expert."""
    sides = pair.reference.top_k, pair.view.top_k
    return max(sides) if min(sides) > 0 else 0


def _distances_of_others(paired: Paired, parts: Sequence[Tensor], *, top_k: int) -> Tensor:
    """Return the summed distances ``(B,)`` of each pair, on one side, from all others, on the other."""
    num_experts, dtype = parts[0].shape[-1], parts[0].dtype
    few = 0 < top_k**2 <= FEW_ENTRIES * num_experts
    rows = [FewShares.of(double(part), entries=top_k) for part in parts] if few else []
    total = double(parts[0].new_zeros(len(parts[0])))
    for each in pairs_apart(paired, entries=1 if few else num_experts):
        if few:
            reference, view = rows[0].at(each.images, each.rows), rows[1].at(each.images)
            distances = reference.distances(view, dtype=dtype)
        else:
            sides = parts[0][each.images, each.rows, None], parts[1][each.images, None]
            distances = double(jensen_shannon_distance(*sides))
        total[each.images] += distances.masked_fill(~each.apart.to(distances.device), 0).sum((1, 2))
    return total


def _unit(weights: Tensor) -> Tensor:
    """Return vectors ``(..., E)`` of length one; of length 0 where there is nothing, exactly one-hot of one expert."""
    largest = weights.amax(-1, keepdim=True)
    scaled = weights / largest.where(largest > 0, 1)
    length = scaled.square().sum(-1, keepdim=True).sqrt()
    return scaled / length.where(length > 0, 1)
