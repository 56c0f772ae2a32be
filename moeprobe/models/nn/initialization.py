"""How V-MoE's parameters start.

Source: the released program of V-MoE (Riquelme et al. 2021); its layers are flax's.
"""

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from moeprobe.models.timm import VisionTransformer

# Standard deviation of a standard normal that is truncated at two standard deviations.
_TRUNCATED_STD = 0.87962566103423978


def initialise(model: "VisionTransformer") -> None:
    """Initialise a dense ViT as V-MoE does, before it is made sparse.

    Xavier-uniform for attention (each of query, key, value by itself) and MLP kernels, MLP biases of standard
    deviation 1e-6, LeCun-normal for the patch embedding and the pre-logits, position embeddings of standard
    deviation 0.02, a zero class token, and a zero head whose bias is -log(classes).
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            lecun_normal(module)
        elif isinstance(module, nn.Linear):
            _initialise_linear(name, module)
    if model.cls_token is not None:
        nn.init.zeros_(model.cls_token)
    if model.pos_embed is not None:
        nn.init.normal_(model.pos_embed, std=0.02)


def _initialise_linear(name: str, linear: nn.Linear) -> None:
    if name == "head":
        nn.init.zeros_(linear.weight)
        nn.init.constant_(linear.bias, -math.log(linear.out_features))
    elif name.startswith("fc_norm"):
        lecun_normal(linear)
    else:
        parts = linear.weight.data.chunk(3) if name.endswith("qkv") else [linear.weight.data]
        for part in parts:
            nn.init.xavier_uniform_(part)
        if ".mlp." in name:
            nn.init.normal_(linear.bias, std=1e-6)
        elif linear.bias is not None:
            nn.init.zeros_(linear.bias)


def lecun_normal(module: nn.Conv2d | nn.Linear) -> None:
    """Draw the kernel with variance 1 / fan-in, truncated at two standard deviations, and set the bias to zero."""
    lecun_normal_(module.weight, fan_in=module.weight[0].numel())
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def lecun_normal_(values: Tensor, *, fan_in: int) -> None:
    """Fill ``values`` with variance 1 / fan-in, truncated at two standard deviations."""
    std = fan_in**-0.5 / _TRUNCATED_STD
    nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std)
