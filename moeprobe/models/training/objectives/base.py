"""What an objective is: weighted terms, from what the routers decided and which patches correspond; balancing losses.

Axes: B source images, V views of each, T tokens, S tokens of a group, E experts, G groups, M pairs of tokens.

Each balancing loss is of every group alone: ``(G, S, E)`` in, ``(G,)`` out. Standard deviations divide by the
number of values. Source: V-MoE (Riquelme et al. 2021), appendix A, and its released program.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models.nn.routers.base import Decision


def local_total(partial_sum: Tensor) -> Tensor:
    """Return a sum over all rows there are."""
    return partial_sum


@dataclass(frozen=True)
class BatchViews:
    """The order of the rows of a batch: rows are image 0 view 1, image 0 view 2, image 1 view 1, ...

    Attributes:
        to_source: V arrays ``(B, 3, 3)``, maps from each view to the source image.
        source_size: ``(B, 2)`` width and height of the sources.
        grid: the patches of a view.
        num_prefix_tokens: tokens before the patches.
        total: turns a sum over these rows into the sum over the whole batch, of which they may be a part; a
            function of sums takes each of them through it, always in the same order.
    """

    to_source: list[NDArray[np.float64]]
    source_size: NDArray[np.float64]
    grid: PatchGrid
    num_prefix_tokens: int
    total: Callable[[Tensor], Tensor] = local_total

    def of(self, images: slice) -> "BatchViews":
        """Return the views of some of the images."""
        maps = [view_maps[images] for view_maps in self.to_source]
        return dataclasses.replace(self, to_source=maps, source_size=self.source_size[images])


@dataclass(frozen=True)
class Term:
    """One auxiliary loss, summed over the MoE layers, and its weight in the total."""

    value: Tensor
    weight: float


class Objective(ABC):
    """A frozen dataclass whose fields are its parameters; those called ``...weight`` are weights of its terms.

    Attributes:
        needs_pairs: the objective compares two views of each image.
        whole_batch: it is a function of sums over the whole batch, which it takes through ``BatchViews.total``; else
        it is a mean over groups of images, so that the mean over the parts of a batch is the batch's mean.

    Raises:
        UserError: a weight is negative or no number.
    """

    needs_pairs: ClassVar[bool]
    whole_batch: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, field.name)
            if field.name.endswith("weight") and not 0 <= value < math.inf:
                raise UserError(f"objective.{field.name} must be a number from 0; got {value}.")

    @abstractmethod
    def terms(self, decisions: Mapping[str, Decision], views: BatchViews) -> dict[str, Term]:
        """Return the named terms of one batch."""


def balancing_terms(
    decisions: Mapping[str, Decision],
    *,
    importance_weight: float,
    load_weight: float,
    gshard_weight: float = 0.0,
    z_weight: float = 0.0,
) -> dict[str, Term]:
    """Return balancing losses: mean over groups, summed over layers; without what weighs nothing.

    There is no load loss without noise.

    Raises:
        UserError: a load loss is asked of a router in which tokens do not choose by their logits, or any loss of one
            whose gates cannot learn.
    """
    terms = {}
    if importance_weight:
        terms["importance"] = Term(
            _sum_over_layers(decisions, lambda d: importance_loss(d.clean_gates)), importance_weight
        )
    if load_weight and any(d.noise_scale > 0 for d in decisions.values()):
        terms["load"] = Term(_sum_over_layers(decisions, _load), load_weight)
    if gshard_weight:
        terms["gshard"] = Term(_sum_over_layers(decisions, lambda d: gshard_loss(d.gates)), gshard_weight)
    if z_weight:
        terms["z"] = Term(_sum_over_layers(decisions, lambda d: z_loss(d.noisy_logits)), z_weight)
    return terms


def _sum_over_layers(decisions: Mapping[str, Decision], loss: Callable[[Decision], Tensor]) -> Tensor:
    for decision in decisions.values():
        check_trained(decision.clean_gates)
    return torch.stack([loss(decision).mean() for decision in decisions.values()]).sum()


def check_trained(gates: Tensor) -> None:
    """Raise ``UserError`` in training if nothing that learns can change the gates: a loss on them would be idle."""
    if torch.is_grad_enabled() and not gates.requires_grad:
        raise UserError(
            "The gates of this router cannot learn, so a loss on them has no effect: "
            "set objective=balanced objective.importance_weight=0 objective.load_weight=0."
        )


def _load(decision: Decision) -> Tensor:
    if decision.top_k is None or decision.scores is not None:
        raise UserError(
            "The load loss is about tokens that choose their experts by noisy logits, and here they do not: "
            "set objective.load_weight=0."
        )
    return load_loss(
        decision.logits, decision.noisy_logits, top_k=decision.top_k, noise_scale=decision.noise_scale
    )


def paired_gates(
    gates: Tensor, first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gates of paired tokens, and which slots hold a pair.

    Args:
        gates: ``(G, S, E)`` of a layer's decision on ``2 B`` rows, views interleaved.
        first: ``(B, M)`` token of view 1 in each slot, -1 = no pair.
        second: ``(B, M)`` token of view 2.

    Returns:
        Gates ``(B, M, E)`` of either side, zero where there is no pair, and the mask ``(B, M)``.

    Raises:
        UserError: the gates cannot learn.
    """
    check_trained(gates)
    gates = gates.reshape(len(first), 2, -1, gates.shape[-1])
    tokens = [torch.from_numpy(side).to(gates.device) for side in (first, second)]
    valid = (tokens[0] >= 0) & (tokens[1] >= 0)
    sides = [
        gates[:, view].gather(1, side.clamp_min(0)[..., None].expand(-1, -1, gates.shape[-1]))
        * valid[..., None]
        for view, side in enumerate(tokens)
    ]
    return sides[0], sides[1], valid


def importance_loss(gates: Tensor) -> Tensor:
    """Return the squared coefficient of variation of the experts' summed gates; ``gates`` without noise."""
    return _squared_variation(gates.sum(1))


def load_loss(logits: Tensor, noisy_logits: Tensor, *, top_k: int, noise_scale: float) -> Tensor:
    """Return the squared coefficient of variation of the experts' expected loads under fresh noise.

    An expert's load is the mean probability that its clean logit plus new noise (standard deviation
    ``noise_scale``) passes the token's threshold, which is its ``top_k``-th largest noisy logit; the gradient flows
    through the threshold too.
    """
    threshold = noisy_logits.topk(top_k, dim=-1).values[..., -1:]
    probability = torch.special.ndtr((logits - threshold) / noise_scale)
    return _squared_variation(probability.mean(1))


def gshard_loss(gates: Tensor) -> Tensor:
    """Return E² · mean_e(share of first choices · mean gate), 1 when balanced (GShard; ``gates`` with noise)."""
    num_experts = gates.shape[-1]
    first = torch.nn.functional.one_hot(gates.argmax(-1), num_experts).to(gates.dtype).mean(1)
    return num_experts**2 * (first * gates.mean(1)).mean(-1)


def z_loss(logits: Tensor) -> Tensor:
    """Return the mean over tokens of logsumexp², which keeps logits small (Zoph et al. 2022; ``logits`` with noise)."""
    return logits.logsumexp(-1).square().mean(1)


def _squared_variation(amounts: Tensor) -> Tensor:
    return (amounts.std(-1, correction=0) / amounts.mean(-1)) ** 2
