"""The mixture-of-experts layer: a router, a dispatcher and experts, side by side.

Axes: B images, T tokens of an image (prefix tokens first), G groups, S = images per group · T, D width, E experts.
"""

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.dispatch import SharedExperts, run_experts
from moeprobe.models.nn.draws import normal
from moeprobe.models.nn.experts import StackedExperts
from moeprobe.models.nn.routers.base import Decision, Router


class MoeLayer(nn.Module):
    """A drop-in for the MLP of a transformer block: ``(B, T, D)`` to ``(B, T, D)``, without the residual.

    Args:
        router: decides which tokens go to which expert.
        experts: run on what they are sent.
        group_images: images whose tokens form one group, i.e. compete for the same capacity.
        bfloat16_dispatch: V-MoE's option, see ``run_experts``.
        whole_expert_dropout: probability with which an expert adds nothing in a step of training, the others more in
            proportion; one at least stays. Routers decide as ever, and nothing is routed elsewhere.
    """

    def __init__(
        self,
        router: Router,
        experts: StackedExperts,
        *,
        group_images: int = 1,
        bfloat16_dispatch: bool = False,
        whole_expert_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.group_images = group_images
        self.bfloat16_dispatch = bfloat16_dispatch
        self.whole_expert_dropout = whole_expert_dropout
        # What runs the experts in their place, where processes share them.
        self.shared_experts: SharedExperts | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Route tokens ``(B, T, D)``, run the experts and combine what they give."""
        plan = self.route(tokens).plan
        if self.training and self.whole_expert_dropout:
            plan = plan.scale(self.dropout_factors(tokens))
        experts = self.experts if self.shared_experts is None else self.shared_experts
        outputs = run_experts(experts, tokens.flatten(0, 1), plan, bfloat16=self.bfloat16_dispatch)
        return outputs.view_as(tokens)

    def dropout_factors(self, tokens: Tensor) -> Tensor:
        """Draw by what each expert's weights are multiplied in this step, ``(E,)``: 0, or 1 / (1 − p)."""
        number, keep_probability = self.router.num_experts, 1 - self.whole_expert_dropout
        draws = torch.rand(number, device=tokens.device)
        # One stays, and which one is as random; nothing here waits for a device.
        stays = (draws < keep_probability) | (draws == draws.min())
        return stays / keep_probability

    def route(self, tokens: Tensor) -> Decision:
        """Return the router's decision for tokens ``(B, T, D)``, in groups of whole images, in batch order."""
        groups = tokens.reshape(self._num_groups(len(tokens)), -1, tokens.shape[-1])
        decision: Decision = self.router(groups, self._noise(groups))
        return decision

    def _num_groups(self, num_images: int) -> int:
        """Return G; a batch that is smaller than a group is one group (the end of a data set)."""
        if num_images % self.group_images == 0:
            return num_images // self.group_images
        if num_images < self.group_images or not self._groups_matter():
            return 1
        raise UserError(
            f"{num_images} images cannot be cut into groups of {self.group_images}: "
            f"choose a batch size that is a multiple of {self.group_images}."
        )

    def _groups_matter(self) -> bool:
        rule = self.router.capacity if self.training else self.router.eval_capacity
        # At evaluation, groups matter only if they limit capacity or if tokens depend on each other.
        return self.training or rule.factor is not None or not self.router.token_local

    def _noise(self, groups: Tensor) -> Tensor | None:
        if not self.training or self.router.noise_std == 0:
            # At evaluation routers decide without noise, as V-MoE's do.
            return None
        shape = (*groups.shape[:2], self.router.num_logits)
        return normal(shape, device=groups.device)
