"""Which tokens does an expert lose? Of those it processes in the reference, the share that it does not in the view.

Over all experts (each expert's tokens count), and expert by expert (column ``expert``). Only processed tokens count,
so a token that its expert drops for lack of capacity is lost too. Chance is the churn if the view's tokens were
reassigned: pooled, an expert processes any token at its overall rate; image, it processes another patch
of the same image. kappa is 1 − churn / chance, so that 1 is stable and 0 is chance, as everywhere.

Patch tokens only. Axes: B images, J pairs of tokens, E experts, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.chance.trials import per_trial
from moeprobe.metrics.stats.kappa import Complement, Kappa, MeanProduct
from moeprobe.metrics.stats.statistic import Array, Share, Statistic
from moeprobe.metrics.token_kinds import patches, selected_experts, sharing

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


CHURN = Metric(
    "churn",
    about="of the tokens that an expert processes, the share that it does not process in the view; over all experts, "
    "and for each in the column expert",
    label="churn: tokens an expert lost",
    short="churn",
    better="less",
    nulls=("pooled", "image"),
    rank=23,
    along="others",
    secondary=True,
    one_expert=True,
)


class Churn(LayerAnalysis):
    """Share of an expert's tokens whose corresponding token it does not process.

    Five images with two tokens each, of which experts lose two of ten. Reassigned among images they would lose 40 of
    80, so κ = 1 − 0.2 / 0.5. Expert 0 loses one of its six tokens, expert 1 one of four:

    >>> from moeprobe.metrics.analyses.churn import Churn
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> first = route([[0, 0], [0, 1], [1, 1], [0, 1], [0, 0]])
    >>> second = route([[0, 0], [0, 1], [1, 0], [0, 1], [0, 1]])
    >>> value = numbers(Churn(), pair(first, second))
    >>> value["churn"], value["churn_chance pooled"], value["churn_kappa pooled"], value["churn 0"], value["churn 1"]
    (0.2, 0.5, 0.6, 0.167, 0.25)
    """

    measures = (CHURN,)
    signature = "churn_pairs"
    per_expert = "churn_reference"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether experts process some of the tokens, and there is more than one."""
        return layer.top_k > 0 and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return pairs per image, and what each expert processes of them on either and on both sides, ``(B, E)``."""
        paired = patches(pair)
        experts, of_view_experts = (side.long() for side in selected_experts(pair, paired))
        present = paired.present[..., None]
        is_processed = paired.of_reference(pair.reference.processed) & (experts >= 0) & present
        is_processed_in_view = paired.of_view(pair.view.processed) & (of_view_experts >= 0) & present
        in_view = paired.of_view(pair.view.processed_mask).gather(-1, experts.clamp_min(0))
        stays = is_processed & in_view
        number = pair.view.num_experts
        of_reference, of_view, in_both = (
            _counts(experts_of_side, which, number)
            for experts_of_side, which in (
                (experts, is_processed),
                (of_view_experts, is_processed_in_view),
                (experts, stays),
            )
        )
        pairs = paired.present.sum(1)
        shared = sharing(paired, aligned=pair.aligned)
        kept_by_others = (of_reference * of_view).sum(-1) - (shared * stays.sum(-1)).sum(-1)
        had_by_others = of_reference.sum(-1) * pairs - (shared * is_processed.sum(-1)).sum(-1)
        return {
            pair.view.modality.token: {
                "churn_pairs": pairs,
                "churn_reference": of_reference,
                "churn_view": of_view,
                "churn_kept": in_both,
                "churn_kept_by_others": kept_by_others,
                "churn_had_by_others": had_by_others,
            }
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the churn over all experts, with chance and kappa, and of each."""
        pairs = columns["churn_pairs"].astype(np.float64)
        reference, view, stays = (
            columns[f"churn_{name}"].astype(np.float64) for name in ("reference", "view", "kept")
        )
        trials = columns["churn_reference"].sum(1)
        had, stayed = reference.sum(1), stays.sum(1)
        # Share of assignments that stay: as they do, and as they would by chance, of the same images.
        nulls: dict[str, tuple[Statistic, Statistic, NDArray[np.generic]]] = {
            "pooled": (
                Share(stayed, had),
                MeanProduct(reference, view, had, pairs),
                trials,
            ),
        }
        other_patches = _by_others(columns, aligned=aligned)
        if other_patches is not None:
            by_others, has_others = per_trial(*other_patches, had), other_patches[1] > 0
            nulls["image"] = Share(stayed * has_others, had * has_others), by_others, trials * has_others
        metrics = [CHURN.raw(Share(had - stayed, had), trials)]
        for null, (stay, chance, null_trials) in nulls.items():
            metrics += CHURN.against(null, Complement(chance), Kappa(stay, chance), null_trials)
        return metrics + [
            CHURN.raw(
                Share(reference[:, expert] - stays[:, expert], reference[:, expert]),
                columns["churn_reference"][:, expert],
                expert=expert,
            )
            for expert in range(reference.shape[1])
        ]


def _by_others(columns: Columns, *, aligned: bool) -> tuple[Array, Array] | None:
    """Return what experts keep and have of other patches of the image, ``(n,)`` each.

    Runs from before these were counted have them only where nothing moved: there no two pairs share a patch.
    """
    if "churn_had_by_others" in columns:
        stays, assignments = (
            columns[f"churn_{name}_by_others"].astype(np.float64) for name in ("kept", "had")
        )
        return stays, assignments
    if not aligned:
        return None
    reference, view, stayed = (
        columns[f"churn_{name}"].astype(np.float64) for name in ("reference", "view", "kept")
    )
    return (reference * view - stayed).sum(1), reference.sum(1) * (columns["churn_pairs"] - 1)


def _counts(experts: Tensor, which: Tensor, num_experts: int) -> Tensor:
    """Return how often each expert is among choices ``(B, J, K)``, ``(B, E)``."""
    counts = experts.new_zeros(len(experts), num_experts)
    return counts.scatter_add_(1, experts.clamp_min(0).flatten(1), which.flatten(1).long())
