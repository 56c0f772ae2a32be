"""V-MoE's parameters by the names of its program: as our state, and run through the whole model in float64 loops."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.models.checkpoints import vmoe_names
from moeprobe.models.checkpoints.vmoe_names import infer
from tests.models.nn.references import Array, mlp, ranking, softmax


def to_state_dict(arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Rename and reshape parameters (or their gradients) to this project's layout."""
    sizes = infer({name: array.shape for name, array in arrays.items()}, source="the golden numbers")
    return vmoe_names.to_state_dict(lambda name: torch.from_numpy(arrays[name].copy()), sizes)


def random_parameters(
    *,
    width: int = 6,
    depth: int = 2,
    heads: int = 2,
    hidden: int = 5,
    patch: int = 2,
    side: int = 2,
    classes: int = 3,
    experts: int = 3,
    layers: tuple[int, ...] = (1,),
    pre_logits: bool = True,
    representation: int | None = None,
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """Random parameters of a V-MoE of these sizes, written down from the program's description."""
    D, H, M, E = width, heads, hidden, experts
    R = (representation or D) if pre_logits else D
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, D),
        "embedding/kernel": (patch, patch, 3, D),
        "embedding/bias": (D,),
        "Encoder/posembed_input/pos_embedding": (1, side * side + 1, D),
        "Encoder/encoder_norm/scale": (D,),
        "Encoder/encoder_norm/bias": (D,),
        "head/kernel": (R, classes),
        "head/bias": (classes,),
    }
    if pre_logits:
        shapes |= {"pre_logits/kernel": (D, R), "pre_logits/bias": (R,)}
    for block in range(depth):
        inside: dict[str, tuple[int, ...]] = {}
        for norm in ("LayerNorm_0", "LayerNorm_1"):
            inside |= {f"{norm}/scale": (D,), f"{norm}/bias": (D,)}
        for part in ("query", "key", "value"):
            inside |= {
                f"SelfAttention/{part}/kernel": (D, H, D // H),
                f"SelfAttention/{part}/bias": (H, D // H),
            }
        inside |= {"SelfAttention/out/kernel": (H, D // H, D), "SelfAttention/out/bias": (D,)}
        if block in layers:
            inside |= {"Moe/Router/dense/kernel": (D, E)}
            inside |= {"Moe/Mlp/Dense_0/kernel": (E, D, M), "Moe/Mlp/Dense_0/bias": (E, M)}
            inside |= {"Moe/Mlp/Dense_1/kernel": (E, M, D), "Moe/Mlp/Dense_1/bias": (E, D)}
        else:
            inside |= {"Mlp/Dense_0/kernel": (D, M), "Mlp/Dense_0/bias": (M,)}
            inside |= {"Mlp/Dense_1/kernel": (M, D), "Mlp/Dense_1/bias": (D,)}
        shapes |= {f"Encoder/encoderblock_{block}/{name}": shape for name, shape in inside.items()}
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def forward(
    parameters: Mapping[str, NDArray[Any]], images: Array, *, top_k: int, layers: tuple[int, ...], depth: int
) -> tuple[Array, dict[int, Array]]:
    """Class scores and gates ``(B, T, E)`` per block, of images ``(B, H, W, 3)``; nothing is dropped."""
    found = [_image({name: p.astype(np.float64) for name, p in parameters.items()}, image, top_k, layers, depth)
             for image in images]  # fmt: skip
    return np.stack([scores for scores, _ in found]), {
        layer: np.stack([gates[layer] for _, gates in found]) for layer in layers
    }


def _image(
    p: dict[str, Array], image: Array, top_k: int, layers: tuple[int, ...], depth: int
) -> tuple[Array, dict[int, Array]]:
    kernel, gates = p["embedding/kernel"], {}
    size = kernel.shape[0]
    rows, columns = image.shape[0] // size, image.shape[1] // size
    tokens = [p["cls"][0, 0]]
    for row in range(rows):
        for column in range(columns):
            patch = image[row * size : (row + 1) * size, column * size : (column + 1) * size]
            tokens.append(np.einsum("hwc,hwcd->d", patch, kernel) + p["embedding/bias"])
    x = np.stack(tokens) + p["Encoder/posembed_input/pos_embedding"][0]
    for block in range(depth):
        name = f"Encoder/encoderblock_{block}"
        x = x + _attention(p, f"{name}/SelfAttention", _norm(p, f"{name}/LayerNorm_0", x))
        y = _norm(p, f"{name}/LayerNorm_1", x)
        if block in layers:
            gates[block] = softmax(y @ p[f"{name}/Moe/Router/dense/kernel"])
            x = x + np.stack(
                [_experts(p, f"{name}/Moe/Mlp", *pair, top_k) for pair in zip(y, gates[block], strict=True)]
            )
        else:
            x = x + np.stack([mlp(row, *_dense(p, f"{name}/Mlp")) for row in y])
    out = _norm(p, "Encoder/encoder_norm", x)[0]
    if "pre_logits/kernel" in p:
        out = np.tanh(out @ p["pre_logits/kernel"] + p["pre_logits/bias"])
    return out @ p["head/kernel"] + p["head/bias"], gates


def _dense(p: dict[str, Array], name: str) -> Any:
    return [(p[f"{name}/Dense_{layer}/kernel"], p[f"{name}/Dense_{layer}/bias"]) for layer in (0, 1)]


def _experts(p: dict[str, Array], name: str, token: Array, gates: Array, top_k: int) -> Array:
    (w0, b0), (w1, b1) = _dense(p, name)
    chosen = ranking(gates)[:top_k]
    total: Array = sum(gates[e] * mlp(token, (w0[e], b0[e]), (w1[e], b1[e])) for e in chosen)
    return total


def _norm(p: dict[str, Array], name: str, x: Array) -> Array:
    centerd = x - x.mean(-1, keepdims=True)
    return (
        centerd / np.sqrt((centerd**2).mean(-1, keepdims=True) + 1e-6) * p[f"{name}/scale"]
        + p[f"{name}/bias"]
    )


def _attention(p: dict[str, Array], name: str, x: Array) -> Array:
    query, key, value = (
        np.einsum("td,dhe->hte", x, p[f"{name}/{part}/kernel"]) + p[f"{name}/{part}/bias"][:, None]
        for part in ("query", "key", "value")
    )
    out = np.zeros_like(x)
    for head in range(len(query)):
        weights = softmax(query[head] @ key[head].T / np.sqrt(query.shape[-1]))
        out += weights @ value[head] @ p[f"{name}/out/kernel"][head]
    return out + p[f"{name}/out/bias"]
