"""From the parameter names of V-MoE's released program to ours."""

import re
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

_RENAMES = [
    (r"^cls$", "cls_token"),
    (r"^embedding/", "patch_embed.proj."),
    (r"^Encoder/posembed_input/pos_embedding$", "pos_embed"),
    (r"^Encoder/encoder_norm/", "norm."),
    (r"^pre_logits/", "fc_norm.0."),
    (r"^head/", "head."),
    (r"^Encoder/encoderblock_(\d+)/", r"blocks.\1."),
    (r"LayerNorm_0/", "norm1."),
    (r"LayerNorm_1/", "norm2."),
    (r"SelfAttention/out/", "attn.proj."),
    (r"Moe/Router/dense/", "mlp.router.gate."),
    (r"Moe/Mlp/Dense_0/", "mlp.experts.fc1."),
    (r"Moe/Mlp/Dense_1/", "mlp.experts.fc2."),
    (r"Mlp/Dense_0/", "mlp.fc1."),
    (r"Mlp/Dense_1/", "mlp.fc2."),
    (r"(kernel|scale)$", "weight"),
]


def to_state_dict(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, torch.Tensor]:
    """Rename and reshape parameters (or their gradients) to this project's layout."""
    state: dict[str, torch.Tensor] = {}
    qkv: dict[str, dict[str, NDArray[np.float32]]] = {}
    for name, array in arrays.items():
        match = re.match(r"(.*)SelfAttention/(query|key|value)/(kernel|bias)$", name)
        if match:
            qkv.setdefault(f"{match[1]}{match[3]}", {})[match[2]] = array
            continue
        state[_rename(name)] = torch.from_numpy(_layout(name, array).copy())
    for key, parts in qkv.items():
        block = re.sub(r"^Encoder/encoderblock_(\d+)/(kernel|bias)$", r"blocks.\1.attn.qkv.", key)
        width = parts["query"].shape[0]
        rows = [parts[part] for part in ("query", "key", "value")]
        if key.endswith("kernel"):
            stacked, last = np.concatenate([row.reshape(width, -1).T for row in rows]), "weight"
        else:
            stacked, last = np.concatenate([row.ravel() for row in rows]), "bias"
        state[block + last] = torch.from_numpy(stacked.copy())
    return state


def _rename(name: str) -> str:
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")


def _layout(name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
    if name == "embedding/kernel":
        return array.transpose(3, 2, 0, 1)
    if name.endswith("SelfAttention/out/kernel"):
        return array.reshape(-1, array.shape[-1]).T
    if name.endswith("kernel") and "Moe/Mlp" not in name:
        return array.T
    return array
