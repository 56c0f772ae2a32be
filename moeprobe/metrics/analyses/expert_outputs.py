"""Which experts do the same? The outputs of all experts on the same patches, whether they were chosen for them or not.

* ``expert_distance``: summed squared distance of two experts' outputs on the same patches, over the mean of their
  summed squared norms: 0 = they are the same function of these patches;
* ``expert_distance_permuted``: the same with the patches of one expert permuted within the image, in expectation over
  all permutations that leave no patch in place; computed exactly, nothing is drawn;
* ``expert_cka``: linear centered kernel alignment of the two over the patches of an image: 1 = the same up to shift,
  rotation and scale. Numerator and denominators are unbiased estimates, added up over images, so permuted patches give
  0 in expectation and no chance level is needed (Nguyen, Raghu and Kornblith 2021, minibatch CKA; Song et al. 2012);
* ``expert_saliency``: mean over the patches that an expert processes of gate times norm of its output, the criterion of
  router-weighted expert activation pruning (REAP, Lasby et al. 2025).

Patch tokens only. Axes: B images, E experts, T patches, D width, I the E (E − 1) / 2 pairs of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Additive, Array, MeanOf, Ratio, Totals, divide

if TYPE_CHECKING:
    from torch import Tensor

EXPERT_DISTANCE = Metric(
    "expert_distance",
    about="squared distance of the outputs of two experts (columns expert, expert_b) on the same patches, over the "
    "mean of their squared norms: 0 = the same outputs; without experts: the mean over all pairs",
    label="distance of experts' outputs",
    unit="other",
)
EXPERT_DISTANCE_PERMUTED = Metric(
    "expert_distance_permuted",
    about="the same with the patches of one of the two experts permuted within each image, in expectation",
    label="distance of experts' outputs, permuted patches",
    unit="other",
)
EXPERT_CKA = Metric(
    "expert_cka",
    about="linear centered kernel alignment of the outputs of two experts (columns expert, expert_b) on the patches of "
    "an image, unbiased: 1 = the same up to rotation and scale, 0 = as with permuted patches; without experts: the "
    "mean over all pairs",
    label="CKA of experts' outputs",
    unit="other",
)
EXPERT_SALIENCY = Metric(
    "expert_saliency",
    about="gate times norm of the output of an expert (column expert), on average over the patches that it processes",
    label="saliency",
    unit="other",
)
_OF_PAIRS = (EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED, EXPERT_CKA)
# Fewer patches leave no unbiased estimate of an image's alignment.
_FEWEST = 4


@dataclass(frozen=True)
class LayerOutputs:
    """What every expert of a layer makes of the patches of a batch.

    Attributes:
        outputs: ``(B, T, E, D)`` without gates.
        weights: ``(B, T, E)`` the gates of the experts that process a patch, 0 for all others.
        valid: ``(B, T)`` bool, which patches there are.
    """

    outputs: Tensor
    weights: Tensor
    valid: Tensor


class ExpertOutputsAnalysis(ModelAnalysis[LayerOutputs]):
    """Distance and alignment of the experts' outputs on the same patches, and the saliency of each expert.

    On one patch the experts' outputs are (3, 4) and (0, 5): ‖(3, −1)‖² = 10, over squared norms of 25. The patch has
    expert 0 with a gate of 0.6, and its output a norm of 5:

    >>> import torch
    >>> from moeprobe.metrics.analyses.expert_outputs import ExpertOutputsAnalysis, LayerOutputs
    >>> from moeprobe.metrics.by_hand import numbers
    >>> outputs, gates = torch.tensor([[[[3.0, 4.0], [0.0, 5.0]]]]), torch.tensor([[[0.6, 0.0]]])
    >>> value = numbers(ExpertOutputsAnalysis(), LayerOutputs(outputs, gates, torch.ones(1, 1, dtype=torch.bool)))
    >>> value["expert_distance 0 1"], value["expert_saliency 0"]
    (0.4, 3.0)
    """

    measures = (EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED, EXPERT_CKA, EXPERT_SALIENCY)
    signature = "expert_norms"

    def sums(self, subject: LayerOutputs) -> dict[str, Tensor]:
        """Return per image sums over patches of norms, products of outputs, alignments and saliencies."""
        import torch

        valid = subject.valid
        # Masked, not multiplied: padding may hold NaN. (B, E, T, D), in which sums of squares are exact enough.
        outputs = subject.outputs.masked_fill(~valid[..., None, None], 0).double().transpose(1, 2)
        patches = valid.sum(1)
        norms = outputs.square().sum(-1)
        first, second = torch.triu_indices(outputs.shape[1], outputs.shape[1], 1, device=outputs.device)
        flat = outputs.flatten(2)
        together = (flat @ flat.transpose(1, 2))[:, first, second]
        sums = outputs.sum(2)
        permuted = (sums @ sums.transpose(1, 2))[:, first, second] - together
        squares = norms.sum(-1)
        weights = subject.weights.masked_fill(~valid[..., None], 0).double()
        alignment = _alignment(outputs, valid)
        return {
            "expert_norms": squares,
            "expert_products": together,
            # Each patch beside one other patch, as in a permutation.
            "expert_products_permuted": permuted / (patches - 1).clamp_min(1)[:, None],
            "expert_alignments": alignment[:, first, second],
            "expert_self_alignments": alignment.diagonal(dim1=1, dim2=2),
            "expert_saliencies": (weights * norms.sqrt().transpose(1, 2)).sum(1),
            "expert_processed": (weights > 0).sum(1),
            "expert_patches": patches,
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the distances and alignments of pairs of experts, and the saliency of each."""
        sums = {name: columns[name].astype(np.float64) for name in columns if name.startswith("expert_")}
        norms, patches = sums["expert_norms"], columns["expert_patches"]
        num_experts = norms.shape[1]
        estimators: list[Estimator] = []
        of_pairs: dict[Metric, list[Additive]] = {metric: [] for metric in _OF_PAIRS}
        for pair, (i, j) in enumerate(zip(*np.triu_indices(num_experts, 1), strict=True)):
            experts = {"expert": int(i), "expert_b": int(j)}
            mean = (norms[:, i] + norms[:, j]) / 2
            for metric, products in (
                (EXPERT_DISTANCE, sums["expert_products"]),
                (EXPERT_DISTANCE_PERMUTED, sums["expert_products_permuted"]),
            ):
                # ‖a − b‖² = ‖a‖² + ‖b‖² − 2 a·b
                distance = Ratio(2 * (mean - products[:, pair]), mean)
                of_pairs[metric].append(distance)
                estimators.append(metric.raw(distance, patches, **experts))
            self_alignments = sums["expert_self_alignments"]
            alignment = _Alignment(
                sums["expert_alignments"][:, pair], self_alignments[:, i], self_alignments[:, j]
            )
            of_pairs[EXPERT_CKA].append(alignment)
            estimators.append(EXPERT_CKA.raw(alignment, patches, **experts))
        # One expert has no pair.
        estimators += [metric.raw(MeanOf(tuple(each)), patches) for metric, each in of_pairs.items() if each]
        for expert in range(num_experts):
            processed = columns["expert_processed"][:, expert]
            mean_saliency = Ratio(sums["expert_saliencies"][:, expert], processed.astype(np.float64))
            estimators.append(EXPERT_SALIENCY.raw(mean_saliency, processed, expert=expert))
        return estimators


def _alignment(outputs: Tensor, valid: Tensor) -> Tensor:
    """Return the unbiased HSIC ``(B, E, E)`` of linear kernels of outputs ``(B, E, T, D)``; 0 of too few patches."""
    import torch

    n = valid.sum(1).double()[:, None, None]
    kernels = outputs @ outputs.transpose(2, 3)
    kernels = kernels - torch.diag_embed(kernels.diagonal(dim1=2, dim2=3))
    flat, rows = kernels.flatten(2), kernels.sum(-1)
    total = rows.sum(-1)
    trace = flat @ flat.transpose(1, 2)
    product_of_totals = total[:, :, None] * total[:, None]
    enough = n >= _FEWEST
    n = n.clamp_min(_FEWEST)
    hsic = trace + product_of_totals / ((n - 1) * (n - 2)) - 2 * (rows @ rows.transpose(1, 2)) / (n - 2)
    return hsic / (n * (n - 3)) * enough


@dataclass(frozen=True)
class _Alignment:
    """Σ HSIC(a, b) / √(Σ HSIC(a, a) Σ HSIC(b, b)), each ``(n,)``; NaN where a denominator is not above 0."""

    joint: Array
    first: Array
    second: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the alignment under each set of weights."""
        return _cosine(*(part @ weights for part in (self.joint, self.first, self.second)))

    def totals(self) -> Totals:
        """Return the three sums."""
        return np.array([self.joint.sum(), self.first.sum(), self.second.sum()])

    def value(self, totals: Totals) -> float:
        """Return the alignment of the three sums."""
        return float(_cosine(*np.asarray(totals)[:, None])[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return each image's influence: by the derivative with respect to the three sums."""
        joint, first, second = self.totals() if totals is None else totals
        value = self.value(np.array([joint, first, second]))
        change: NDArray[np.float64] = divide(self.joint, np.sqrt(np.maximum(first * second, 0.0)))
        return change - value / 2 * (divide(self.first, first) + divide(self.second, second))


def _cosine(joint: Array, first: Array, second: Array) -> Array:
    """Return joint / √(first · second), NaN where either is not above 0."""
    positive = (first > 0) & (second > 0)
    return np.where(positive, joint / np.sqrt(np.where(positive, first * second, 1.0)), np.nan)
