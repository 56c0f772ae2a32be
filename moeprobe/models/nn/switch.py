"""Switch experts of a trained model off, by its parameters: nothing is left on the model that every pass would ask.

After C. Teo, "Exploring Mixture of Experts and Sparse Vision Transformers", section 4.3. Routers decide as before, and
nothing is routed elsewhere.
"""

from typing import Any

import torch
from torch import nn

from moeprobe.models.nn.capture import moe_layers


@torch.no_grad()
def switch_experts(
    model: nn.Module, *, off: bool = False, without: int | None = None, only: int | None = None
) -> None:
    """Change the experts of all MoE layers, in place.

    Args:
        model: with MoE layers of two-layer perceptrons.
        off: no expert adds anything; what is left of a block is its residual.
        without: this expert adds nothing.
        only: every expert is a copy of this one, so that it gets the weights of all that a token has chosen.
    """
    for layer in moe_layers(model).values():
        experts: Any = layer.experts
        if only is not None:
            for parameter in experts.parameters():
                parameter.copy_(parameter[only].clone().expand_as(parameter))
        silent = slice(None) if off else without
        if silent is not None:
            for parameter in experts.fc2.parameters():
                parameter[silent] = 0
