"""What is said of an inspected model, wherever it is known from."""

import math
from dataclasses import dataclass
from typing import Any

from moeprobe.models.nn.moe import MoeLayer


@dataclass(frozen=True)
class LayerFacts:
    """A MoE layer, the tokens of an image that it sees, and the shapes of its experts' parameters, all together."""

    layer: MoeLayer
    tokens: int
    experts: list[tuple[int, ...]]

    @property
    def expert_parameters(self) -> int:
        """How many parameters all experts have."""
        return sum(map(math.prod, self.experts))

    @property
    def idle_parameters(self) -> int:
        """How many of them one token does not meet."""
        router = self.layer.router
        met = (
            router.num_experts
            if router.mixes_tokens
            else min(router.experts_per_token(self.tokens), router.num_experts)
        )
        return round(self.expert_parameters * (router.num_experts - met) / router.num_experts)

    @property
    def expert_flops(self) -> int:
        """What the experts are charged for an image: for what they are sent, since what runs depends on padding."""
        sent = round(self.tokens * self.layer.router.experts_per_token(self.tokens))
        return sent * sum(2 * math.prod(shape[1:]) for shape in self.experts if len(shape) == 3)

    def row(self, name: str, router_name: str) -> dict[str, Any]:
        """Return the rows to print."""
        router = self.layer.router
        return {
            "layer": name,
            "router": router_name,
            "num_experts": router.num_experts,
            "top_k": router.top_k,
            "noise_std": router.noise_std,
            "capacity_factor": router.capacity.factor,
            "eval_capacity_factor": router.eval_capacity.factor,
            "group_images": self.layer.group_images,
            "expert_parameters": self.expert_parameters,
            "expert_flops_per_image": self.expert_flops,
        }


@dataclass(frozen=True)
class Facts:
    """A model's sizes, its MoE layers by name, how many parameters it has, and its operations for one image."""

    image_size: list[int]
    patch_size: list[int]
    tokens: int
    width: int
    blocks: int | list[int]
    classes: int
    parameters: int
    flops: int
    layers: dict[str, LayerFacts]
