"""Gates that decide, token by token and image by image, without even loads: the constraints of a thesis.

Of a token, CV' = μ / (σ² + ε) of its gates over the experts; mean over tokens. μ is 1/E, so it falls as the variance
rises: 1/(E ε) for even gates, about E/(E − 1) for one expert with all the weight.

Of an expert, CV' = μ / (σ² + ε), over the images of a batch, of its summed gates S over an image's patches; mean over
experts. It is low where images differ in the experts that they load. But an expert that gets nothing has μ = 0 and so
CV' = 0, the best there is: a large ε rewards dead experts. ε must be far below μ² (μ is the number of patches / E where
loads are even), and `dead_experts` says what came of it.

Variances divide by n (population). The thesis prints neither weights nor ε: the defaults here are ours.

Source: C. Teo, "Exploring Mixture of Experts and Sparse Vision Transformers", section 3.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.training.objectives.base import BatchViews, Objective, Term, check_trained, local_total


@dataclass(frozen=True)
class Variation(Objective):
    """Gates of each token close to a single expert, and images that load different experts; loads need not be even.

    A large ``image_epsilon`` rewards experts that get nothing: keep it far below the square of patches / experts, and
    watch dead_experts.
    """

    token_weight: float = 1e-3
    token_epsilon: float = 1e-2
    image_weight: float = 1e-3
    image_epsilon: float = 1e-2

    needs_pairs: ClassVar[bool] = False
    whole_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("token_epsilon", "image_epsilon"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"objective.{name} must be a positive number; got {getattr(self, name)}.")

    def terms(self, decisions: Mapping[str, Decision], views: BatchViews) -> dict[str, Term]:
        """Return the two constraints, each summed over layers."""
        rows = len(views.to_source) * len(views.source_size)
        tokens, images = [], []
        for decision in decisions.values():
            check_trained(decision.clean_gates)
            gates = decision.clean_gates
            gates = gates.reshape(rows, -1, gates.shape[-1])
            tokens.append(token_variation(gates, epsilon=self.token_epsilon))
            patches = gates[:, views.num_prefix_tokens :]
            images.append(image_variation(patches, epsilon=self.image_epsilon, total=views.total))
        return {
            "token_inverse_variation": Term(torch.stack(tokens).sum(), self.token_weight),
            "image_inverse_variation": Term(torch.stack(images).sum(), self.image_weight),
        }


def token_variation(gates: Tensor, *, epsilon: float) -> Tensor:
    """Return the mean over tokens of μ / (σ² + ε) over the experts, of gates ``(..., E)``."""
    return (gates.mean(-1) / (gates.var(-1, correction=0) + epsilon)).mean()


def image_variation(
    gates: Tensor, *, epsilon: float, total: Callable[[Tensor], Tensor] = local_total
) -> Tensor:
    """Return the mean over experts of μ / (σ² + ε) over images, of gates ``(B, P, E)`` summed over patches.

    ``total`` sums over the whole batch, of which the images may be a part.
    """
    # Moments, which add up over parts, in double precision (Apple's devices have none): their difference is small.
    loads = gates.sum(1)
    exact = loads if loads.device.type == "mps" else loads.double()
    images = total(exact.new_tensor(float(len(exact))))
    mean, square = total(exact.sum(0)) / images, total(exact.square().sum(0)) / images
    return (mean / (square - mean.square() + epsilon)).mean().to(gates.dtype)
