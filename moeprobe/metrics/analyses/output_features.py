"""What the perturbation does to a model's features, where it gives no class scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, OutputAnalysis, OutputPair
from moeprobe.metrics.declaration import Metric
from moeprobe.routing.finite import scores_are_not

if TYPE_CHECKING:
    from torch import Tensor


OUTPUT_COSINE = Metric(
    "output_cosine",
    about="mean cosine of a model's features with the clean input's, where it gives no class scores: 1 = the "
    "same up to a factor",
    label="cosine of the output with clean",
    short="output cosine",
    better="more",
    rank=12,
    headline=True,
)


class OutputFeatures(OutputAnalysis):
    """Cosine of the view's features with the reference's, per image.

    Features (3, 4) become (4, 3), with a cosine of 24 / 25, and (1, 0) become twice as long, with a cosine of 1:

    >>> import torch
    >>> from moeprobe.metrics.analyses.output_features import OutputFeatures
    >>> from moeprobe.metrics.base import OutputPair
    >>> from moeprobe.metrics.by_hand import numbers
    >>> clean, view = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [2.0, 0.0]])
    >>> numbers(OutputFeatures(), OutputPair(clean, view, labels=torch.tensor([-1, -1])))
    {'output_cosine': 0.98}
    """

    measures = (OUTPUT_COSINE,)
    signature = "compared_outputs"

    def sums(self, pair: OutputPair) -> dict[str, Tensor]:
        """Return the cosine of each image, and whether it has one: features of length 0 have no direction.

        Of the view alone there is none.
        """
        import torch
        import torch.nn.functional as F

        if pair.reference is None:
            return {self.signature: torch.zeros(len(pair.view), dtype=torch.int64)}
        reference, view = pair.reference.double(), pair.view.double()
        has_direction = (reference.norm(dim=1) > 0) & (view.norm(dim=1) > 0)
        is_compared = has_direction & ~scores_are_not(pair.view) & ~scores_are_not(pair.reference)
        cosine = F.cosine_similarity(reference, view).clamp(-1, 1)
        return {
            "output_cosine": cosine.where(is_compared, torch.zeros_like(cosine)),
            "compared_outputs": is_compared.long(),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the mean; nothing without a reference."""
        if OUTPUT_COSINE.name not in columns:
            return []
        return [OUTPUT_COSINE.mean_of(columns["output_cosine"], columns["compared_outputs"])]
