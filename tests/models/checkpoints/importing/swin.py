"""A Swin-MoE's parameters as its program writes them, and what it computes from them, written as plain loops.

Two stages of two blocks on 32 pixels: 8 x 8 tokens in windows of 4, shifted by 2 in the second block; then 4 x 4 tokens
in one window. Experts in the second block of either stage.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import erf, softmax
from torch import Tensor

Array = NDArray[np.float64]
State = dict[str, Tensor]
WIDTH, HEADS, WINDOW, IMAGE, PATCH, CLASSES, EXPERTS = 8, (2, 4), 4, 32, 4, 5, 4
SPARSE = ("layers.0.blocks.1", "layers.1.blocks.1")


def parameters(*, cosine: bool = False, cpb: bool = False, second_bias: bool = True, seed: int = 0) -> State:
    """All parameters and buffers of one process, its experts those of all ranks."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,),
        "patch_embed.norm.weight": (WIDTH,), "patch_embed.norm.bias": (WIDTH,),
        "layers.0.downsample.norm.weight": (4 * WIDTH,), "layers.0.downsample.norm.bias": (4 * WIDTH,),
        "layers.0.downsample.reduction.weight": (2 * WIDTH, 4 * WIDTH),
        "norm.weight": (2 * WIDTH,), "norm.bias": (2 * WIDTH,),
        "head.weight": (CLASSES, 2 * WIDTH), "head.bias": (CLASSES,),
    }  # fmt: skip
    for stage in range(2):
        width, heads = WIDTH * 2**stage, HEADS[stage]
        for block in range(2):
            name = f"layers.{stage}.blocks.{block}"
            for norm in ("norm1", "norm2"):
                shapes |= {f"{name}.{norm}.weight": (width,), f"{name}.{norm}.bias": (width,)}
            shapes |= {f"{name}.attn.qkv.weight": (3 * width, width), f"{name}.attn.qkv.bias": (3 * width,)}
            shapes |= {f"{name}.attn.proj.weight": (width, width), f"{name}.attn.proj.bias": (width,)}
            if cpb:
                shapes |= {f"{name}.attn.cpb_mlp.0.weight": (6, 2), f"{name}.attn.cpb_mlp.0.bias": (6,)}
                shapes[f"{name}.attn.cpb_mlp.2.weight"] = (heads, 6)
            else:
                shapes[f"{name}.attn.relative_position_bias_table"] = ((2 * WINDOW - 1) ** 2, heads)
            shapes |= _perceptron(name, width, cosine=cosine, second_bias=second_bias)
    state = {name: torch.from_numpy(rng.normal(0, 0.3, shape).astype("f4")) for name, shape in shapes.items()}
    for name in list(state):
        if name.endswith("temperature"):
            state[name] = torch.tensor([math.log(1 / 0.3)])
        if name.endswith("qkv.weight"):
            attention = name.removesuffix(".qkv.weight")
            state[f"{attention}.relative_position_index"] = torch.from_numpy(_index())
            if cpb:
                state[f"{attention}.relative_coords_table"] = torch.from_numpy(_coordinates())
    state["layers.0.blocks.1.attn_mask"] = torch.from_numpy(_mask().astype("f4"))
    return state


def _perceptron(name: str, width: int, *, cosine: bool, second_bias: bool) -> dict[str, tuple[int, ...]]:
    if name not in SPARSE:
        bias: dict[str, tuple[int, ...]] = {f"{name}.mlp.fc2.bias": (width,)} if second_bias else {}
        first = {f"{name}.mlp.fc1.weight": (4 * width, width), f"{name}.mlp.fc1.bias": (4 * width,)}
        return first | {f"{name}.mlp.fc2.weight": (width, 4 * width)} | bias
    layer = f"{name}.mlp._moe_layer"
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}.experts.batched_fc1_w": (EXPERTS, 4 * width, width),
        f"{layer}.experts.batched_fc2_w": (EXPERTS, 4 * width, width),
        f"{layer}.experts.batched_fc1_bias": (EXPERTS, 4 * width),
        f"{layer}.experts.batched_fc2_bias": (EXPERTS, width),
    }
    if not cosine:
        return shapes | {f"{layer}.gates.0.wg.weight": (EXPERTS, width)}
    return shapes | {
        f"{layer}.gates.0.cosine_projector.weight": (6, width),
        f"{layer}.gates.0.cosine_projector.bias": (6,),
        f"{layer}.gates.0.sim_matrix": (6, EXPERTS),
        f"{layer}.gates.0.temperature": (1,),
    }


def write(
    prefix: Path, state: State, *, ranks: int = 2, master: bool = False, more: dict[str, Any] | None = None
) -> Path:
    """Write a file per rank: its share of the experts, or of their hidden width where ranks are more than experts."""
    shares: list[State] = [{} for _ in range(ranks)]
    shared: State = {}
    for name, tensor in state.items():
        if ".experts." not in name:
            shared[name] = tensor
            continue
        if ranks <= EXPERTS:
            parts = list(tensor.chunk(ranks))
        else:
            parts = [part for expert in tensor.split(1) for part in expert.chunk(ranks // EXPERTS, dim=1)]
        for share, part in zip(shares, parts, strict=True):
            share[name] = part.clone()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for rank, share in enumerate(shares):
        content = {"model": share if master else shared | share, "epoch": 3, **(more or {})}
        torch.save(content, f"{prefix}.rank{rank}")
    if master:
        torch.save({"model": shared}, f"{prefix}.master")
    return prefix


def forward(
    state: State, images: Array, *, top_k: int = 1, renormalise: bool = False
) -> tuple[Array, dict[str, Array]]:
    """The scores ``(B, C)`` of normalized images, and each gate's softmax ``(B, T, E)``; no capacity, no noise."""
    p = {name: tensor.double().numpy() for name, tensor in state.items()}
    gates: dict[str, Array] = {}
    side = IMAGE // PATCH
    cut = images.reshape(len(images), 3, side, PATCH, side, PATCH).transpose(0, 2, 4, 1, 3, 5)
    x = np.einsum("bhwcij,dcij->bhwd", cut, p["patch_embed.proj.weight"]) + p["patch_embed.proj.bias"]
    x = _norm(x, p, "patch_embed.norm")
    for stage in range(2):
        for block in range(2):
            name = f"layers.{stage}.blocks.{block}"
            shift = WINDOW // 2 if (stage, block) == (0, 1) else 0
            x = x + _attention(_norm(x, p, f"{name}.norm1"), p, f"{name}.attn", HEADS[stage], shift)
            y = _norm(x, p, f"{name}.norm2")
            tokens = y.reshape(len(y), -1, y.shape[-1])
            x = x + _mlp(tokens, p, name, gates, top_k=top_k, renormalise=renormalise).reshape(x.shape)
        if stage == 0:
            parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
            merged = _norm(np.concatenate(parts, axis=-1), p, "layers.0.downsample.norm")
            x = merged @ p["layers.0.downsample.reduction.weight"].T
    pooled = _norm(x, p, "norm").mean((1, 2))
    return pooled @ p["head.weight"].T + p["head.bias"], gates


def _norm(x: Array, p: dict[str, Array], name: str) -> Array:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    found: Array = scaled * p[f"{name}.weight"] + p[f"{name}.bias"]
    return found


def _gelu(x: Array) -> Array:
    found: Array = x * 0.5 * (1 + erf(x / math.sqrt(2)))
    return found


def _mlp(
    tokens: Array, p: dict[str, Array], block: str, gates: dict[str, Array], *, top_k: int, renormalise: bool
) -> Array:
    if block not in SPARSE:
        hidden = _gelu(tokens @ p[f"{block}.mlp.fc1.weight"].T + p[f"{block}.mlp.fc1.bias"])
        return hidden @ p[f"{block}.mlp.fc2.weight"].T + p.get(f"{block}.mlp.fc2.bias", np.zeros(1))
    layer = f"{block}.mlp._moe_layer"
    if f"{layer}.gates.0.wg.weight" in p:
        logits = tokens @ p[f"{layer}.gates.0.wg.weight"].T
    else:
        gate = f"{layer}.gates.0"
        projected = tokens @ p[f"{gate}.cosine_projector.weight"].T + p[f"{gate}.cosine_projector.bias"]
        directions = p[f"{gate}.sim_matrix"]
        cosine = (projected / np.linalg.norm(projected, axis=-1, keepdims=True)) @ (
            directions / np.linalg.norm(directions, axis=0)
        )
        logits = cosine * math.exp(min(float(p[f"{gate}.temperature"][0]), math.log(100)))
    gates[block] = softmax(logits, axis=-1)
    out = np.zeros_like(tokens)
    for image, token in np.ndindex(*tokens.shape[:2]):
        scores = gates[block][image, token]
        chosen = np.argsort(-scores, kind="stable")[:top_k]
        whole = scores[chosen].sum() if renormalise else 1.0
        for expert in chosen:
            row = tokens[image, token]
            hidden = p[f"{layer}.experts.batched_fc1_w"][expert] @ row
            hidden = _gelu(hidden + p[f"{layer}.experts.batched_fc1_bias"][expert])
            given = hidden @ p[f"{layer}.experts.batched_fc2_w"][expert]
            out[image, token] += (
                scores[expert] / whole * (given + p[f"{layer}.experts.batched_fc2_bias"][expert])
            )
    return out


def _attention(x: Array, p: dict[str, Array], name: str, heads: int, shift: int) -> Array:
    """Each token looks at those of its window: the frame is cut after it was moved, and the seams are walls."""
    batch, side, _, width = x.shape
    qkv = x @ p[f"{name}.qkv.weight"].T + p[f"{name}.qkv.bias"]
    query, key, value = (part.reshape(batch, side, side, heads, -1) for part in np.split(qkv, 3, axis=-1))
    table = _table(p, name)
    where = [((row - shift) % side, (column - shift) % side) for row, column in np.ndindex(side, side)]
    out = np.zeros_like(query)
    for here, (row, column) in enumerate(where):
        seen = [
            there
            for there, (other_row, other_column) in enumerate(where)
            if (other_row // WINDOW, other_column // WINDOW) == (row // WINDOW, column // WINDOW)
            and _part(other_row, side, shift) == _part(row, side, shift)
            and _part(other_column, side, shift) == _part(column, side, shift)
        ]
        at = divmod(here, side)
        for head in range(heads):
            logits = []
            for there in seen:
                away = (row - where[there][0] + WINDOW - 1, column - where[there][1] + WINDOW - 1)
                bias = table[away[0] * (2 * WINDOW - 1) + away[1], head]
                product = (query[:, *at, head] * key[:, *divmod(there, side), head]).sum(-1)
                logits.append(product / math.sqrt(width / heads) + bias)
            weights = softmax(np.stack(logits), axis=0)
            out[:, *at, head] = sum(
                weight[:, None] * value[:, *divmod(there, side), head]
                for weight, there in zip(weights, seen, strict=True)
            )
    return out.reshape(batch, side, side, width) @ p[f"{name}.proj.weight"].T + p[f"{name}.proj.bias"]


def _part(position: int, side: int, shift: int) -> int:
    """Which side of the seam a position of the moved frame is on; 0 for all where nothing was moved."""
    return int(shift > 0 and position >= side - shift)


def _table(p: dict[str, Array], name: str) -> Array:
    if f"{name}.relative_position_bias_table" in p:
        return p[f"{name}.relative_position_bias_table"]
    first = _coordinates().reshape(-1, 2) @ p[f"{name}.cpb_mlp.0.weight"].T + p[f"{name}.cpb_mlp.0.bias"]
    found: Array = np.maximum(first, 0) @ p[f"{name}.cpb_mlp.2.weight"].T
    return found


def _coordinates() -> Array:
    side = 2 * WINDOW - 1
    away = (
        (np.array(list(np.ndindex(side, side))).reshape(1, side, side, 2) - (WINDOW - 1)) * 8.0 / (WINDOW - 1)
    )
    found: Array = np.sign(away) * np.log2(np.abs(away) + 1) / np.log2(8)
    return found.astype("f4")


def _index() -> NDArray[np.int64]:
    places = np.array(list(np.ndindex(WINDOW, WINDOW)))
    away = places[:, None] - places[None] + WINDOW - 1
    found: NDArray[np.int64] = away[..., 0] * (2 * WINDOW - 1) + away[..., 1]
    return found


def _mask() -> Array:
    """Four windows of 16 tokens; only its shape is read."""
    return np.zeros(((IMAGE // PATCH // WINDOW) ** 2, WINDOW**2, WINDOW**2))
