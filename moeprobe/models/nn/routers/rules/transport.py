"""Transport between tokens and experts, entropic or sparse, and what routers that choose by a plan have in common.

Axes: G groups, S tokens per group, E experts; N rows, M columns of a sparse plan. Where experts choose, a row is an
expert and a column a token; where tokens choose, it is the other way round.

A sparse plan solves max ⟨Π, similarity⟩ − γ/2 ‖Π‖² with given sums of rows and columns and at most k entries per row
that are not zero. Its semi-dual has one potential per column; given those, every row is a projection onto the sparse
simplex. So the rows are met exactly, and the columns only after enough steps (where k is small, perhaps never).

Sources: Liu et al. 2024, "Routers in Vision Mixture of Experts", equation 8, as V-MoE's authors ran it: cost −logits,
ε = 1, 20 rounds (the algorithm: Sinkhorn 1964, Cuturi 2013); Liu, Puigcerver, Blondel 2023, "Sparsity-constrained
optimal transport", where V-MoE's authors take 20 steps of Adam.
"""

import math
from abc import ABC
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.nn.routers.rules.linear import Limits, LinearRouter, Logits

Combine = Literal["softmax", "plan"]


def transport_plan(logits: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Return the plan Π ``(G, S, E)`` that maximizes ⟨Π, logits⟩ + ε · entropy(Π), after so many rounds.

    A token sends 1 in all, an expert takes S / E of its group. Each round scales the columns and then the rows of
    log Π: so rows sum to 1, and columns to S / E as nearly as the rounds get. The gradient goes through all rounds.
    """
    plan = logits / epsilon
    for _ in range(iterations - 1):
        # Columns that sum to 1 instead of S / E: the rows, which come next, take any common factor away again.
        plan = plan.log_softmax(1).log_softmax(-1)
    return plan.log_softmax(1).softmax(-1)


class SinkhornRouter(LinearRouter, ABC):
    """A router whose choice is read off the transport plan of its logits, noisy ones in training.

    The combination takes its weights from the softmax of the logits, and the plan is then without gradient; or with
    ``combine="plan"`` from the plan, with the gradient through all rounds.

    Raises:
        UserError: ``epsilon`` is not positive or ``iterations`` is less than one.
    """

    token_local = False

    def __init__(
        self,
        width: int,
        num_experts: int,
        limits: Limits,
        *,
        epsilon: float,
        iterations: int,
        combine: Combine,
    ) -> None:
        super().__init__(width, num_experts, limits)
        if not 0 < epsilon < math.inf:
            raise UserError(f"Sinkhorn's epsilon must be a number above 0; got {epsilon}.")
        if iterations < 1:
            raise UserError(f"Sinkhorn's algorithm needs at least one iteration; got {iterations}.")
        self.epsilon = epsilon
        self.iterations = iterations
        self.combine = combine

    def _plan(self, logits: Tensor) -> Tensor:
        return transport_plan(logits, epsilon=self.epsilon, iterations=self.iterations)

    def _scores_and_gates(self, logits: Logits) -> tuple[Tensor, Tensor, Tensor]:
        """Return the plan of the noisy logits, without gradient, and the weights by the noisy and the clean ones."""
        if self.combine == "plan":
            gates = self._plan(logits.noisy)
            clean_gates = gates if logits.noisy is logits.clean else self._plan(logits.clean)
            return gates.detach(), gates, clean_gates
        with torch.no_grad():
            scores = self._plan(logits.noisy)
        return scores, *logits.softmax()


# Adam's own, as everywhere.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class SparseTransport:
    """How a plan is found.

    Attributes:
        gamma: weight of the squared norm; the larger, the more even the entries of a row.
        learning_rate: of Adam on the potentials, which start at zero.
        iterations: its steps.

    Raises:
        UserError: one of them is not positive.
    """

    gamma: float = 1.0
    learning_rate: float = 1e-2
    iterations: int = 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise UserError(f"The router's {name} must be a positive number; got {value}.")

    def plan(self, similarity: Tensor, *, row_sum: float, max_nonzeros: int) -> Tensor:
        """Return the plan ``(G, N, M)`` for a similarity of that shape, each group by itself.

        Every row sums to ``row_sum`` and has at most ``max_nonzeros`` entries that are not zero; the columns are
        steered to share all rows evenly. The potentials and the places of the entries are constants to autograd;
        through the values of the entries the gradient flows.
        """
        potentials = self.potentials(similarity, row_sum=row_sum, max_nonzeros=max_nonzeros)
        scores = (similarity + potentials[:, None]) / (row_sum * self.gamma)
        return row_sum * project(scores, max_nonzeros=max_nonzeros)

    @torch.no_grad()
    def potentials(self, similarity: Tensor, *, row_sum: float, max_nonzeros: int) -> Tensor:
        """Return the potentials of the columns ``(G, M)`` after Adam's steps up the semi-dual."""
        num_groups, num_rows, num_columns = similarity.shape
        column_sum = num_rows * row_sum / num_columns
        potentials = similarity.new_zeros(num_groups, num_columns)
        mean, square = torch.zeros_like(potentials), torch.zeros_like(potentials)
        for step in range(1, self.iterations + 1):
            scores = (similarity + potentials[:, None]) / (row_sum * self.gamma)
            gradient = column_sum - row_sum * project(scores, max_nonzeros=max_nonzeros).sum(1)
            mean = _BETAS[0] * mean + (1 - _BETAS[0]) * gradient
            square = _BETAS[1] * square + (1 - _BETAS[1]) * gradient**2
            scale = (square / (1 - _BETAS[1] ** step)).sqrt() + _EPSILON
            potentials = potentials + self.learning_rate * mean / (1 - _BETAS[0] ** step) / scale
        return potentials


def project(scores: Tensor, *, max_nonzeros: int) -> Tensor:
    """Return the points of the simplex nearest to ``scores`` ``(..., M)`` that have at most ``max_nonzeros`` entries.

    The largest scores are kept, of equal ones the first, and projected onto the simplex. The gradient flows through the
    values that are kept, not through their choice.
    """
    count = min(max_nonzeros, scores.shape[-1])
    best = scores.topk(count, dim=-1).values
    # A shift changes nothing, and sums of small numbers are exact.
    scores, best = scores - best[..., :1], best - best[..., :1]
    excess = best.cumsum(-1) - 1
    size = torch.arange(1, count + 1, device=scores.device)
    # At least one, but for what is no number: training says so of its loss.
    positive = (best * size > excess).sum(-1, keepdim=True).clamp_min(1)
    threshold = excess.gather(-1, positive - 1) / positive
    # The same as a stable sort, at a quarter of its time.
    above, tied = scores > best[..., -1:], scores == best[..., -1:]
    support = above | (tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return (scores - threshold).clamp_min(0).masked_fill(~support, 0)
