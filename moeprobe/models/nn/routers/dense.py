"""A dense gate: every token goes through all experts.

Axes: G groups, S tokens per group, D width, E experts, H width of a hidden layer.

Source: adaptive mixtures of experts (Jacobs et al. 1991); before every block's MLP in C. Teo, "Exploring Mixture of
Experts and Sparse Vision Transformers", section 3.2, whose gate is "a single MLP layer".
"""

from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.initialization import lecun_normal
from moeprobe.models.nn.plans import CapacityRule, FullPlan
from moeprobe.models.nn.routers.base import Decision, Router, ScoringRows
from moeprobe.models.nn.routers.rules.linear import (
    Logits,
    at_least_float32,
    chosen_by_nobody,
    without_autocast,
)
from moeprobe.routing.router_rows import Start


class Dense(Router):
    """Dense gate: a token's output is the sum of all experts' outputs, weighted by softmax(x W + (noise_std / E) · ε).

    All is differentiable and nothing is chosen, so there is no capacity, and metrics of choices do not exist.

    Args:
        width: D.
        num_experts: E.
        gate_hidden: H of a gate with a hidden layer, softmax(GELU(x V + a) W + b); None = linear, without a bias.
        noise_std: of the logits in training, divided by E.
        capacity: has no effect.
        eval_capacity: has no effect.

    Raises:
        UserError: the hidden layer has no unit.
    """

    token_local = True
    gates_sum_to_one = True
    default_capacity = CapacityRule(None)
    default_group_images = 1
    top_k = None

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        gate_hidden: int | None = None,
        noise_std: float = 0.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__()
        if gate_hidden is not None and gate_hidden < 1:
            raise UserError(f"The hidden layer of a gate needs at least one unit; got {gate_hidden}.")
        self.num_experts = num_experts
        self.noise_std = noise_std
        self.capacity = self.eval_capacity = CapacityRule(None)
        if gate_hidden is None:
            self.gate: nn.Module = nn.Linear(width, num_experts, bias=False)
        else:
            self.gate = nn.Sequential(
                nn.Linear(width, gate_hidden),
                nn.GELU(approximate="tanh"),
                nn.Linear(gate_hidden, num_experts),
            )
        for module in self.gate.modules():
            if isinstance(module, nn.Linear):
                lecun_normal(module)

    def experts_per_token(self, group_size: int) -> float:
        """Return E."""
        return self.num_experts

    def expert_rows(self) -> ScoringRows:
        """Return the rows of the gate's last layer; with a hidden layer, they score its units."""
        last = self.gate if isinstance(self.gate, nn.Linear) else list(self.gate.children())[-1]
        assert isinstance(last, nn.Linear)
        return ScoringRows(last.weight, Start.lecun(last.in_features), last.bias, is_choice_by_scores=False)

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        with without_autocast(tokens):
            clean = self.gate(at_least_float32(tokens))
            logits = Logits.of(clean, noise, scale=self.noise_std / self.num_experts)
            gates, clean_gates = logits.softmax()
            return chosen_by_nobody(logits, gates, clean_gates, FullPlan(gates))
