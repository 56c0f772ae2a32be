"""Random fixed routing: a gate that stays as it was drawn, the baseline of a router that cannot learn.

Axes: G groups, S tokens per group, D width, E experts, K choices.

Source: the frozen routers that learned ones are compared with, e.g. in Dikkala et al. 2023, "On the benefits of
learning to route in mixture-of-experts models".
"""

from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice


class RandomFixed(SoftmaxTokenChoice):
    """Random fixed: top-k of softmax(x W), where W is drawn once, never trained, and saved with the checkpoint.

    No noise: there is nothing to explore. The layers below still learn, so they can move tokens from expert to
    expert, through the weights of the combination or a loss on the gates.
    """

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
        *,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__(
            width, num_experts, top_k, noise_std=0.0, capacity=capacity, eval_capacity=eval_capacity
        )
        weight = self.gate.weight.detach()
        del self.gate.weight
        self.gate.register_buffer("weight", weight)
