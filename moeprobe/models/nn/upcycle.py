"""A dense vision transformer's weights as the start of a sparse one.

Source: Sparse Upcycling (Komatsuzaki et al. 2023): every expert is a copy of the MLP whose place it takes, the rest is
taken over, and the routers are drawn with standard deviation 0.02. Where a token's combine weights sum to one the
sparse model begins as the dense one.

Axes: E experts, D width, M hidden width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.vit import resize_position_embedding
from moeprobe.models.timm import VisionTransformer

# Not copied: a head may be for other classes, and V-MoE's own heads have no counterpart in a dense model.
_HEADS = ("head.", "head_dist.")
_ROUTER_STD = 0.02


def upcycle(
    model: VisionTransformer,
    dense: Mapping[str, Tensor],
    *,
    source: str,
    noise: float = 0,
    keep_head: bool = False,
) -> None:
    """Start a sparse ``model`` from the parameters of a dense one, in place; the head stays fresh.

    Args:
        model: made sparse by ``nn.sparse.make_sparse``, freshly initialized.
        dense: by timm's names. Position embeddings may be of another grid.
        source: what they are from, for sentences.
        noise: standard deviation of the noise in the weights of each copy, as a share of the weights' own; biases
            stay as they are. With 0 all experts begin equal, and only what they are sent tells them apart.
        keep_head: take the head over too, which is of as many classes; else one among the parameters is left out.

    Raises:
        UserError: a parameter has no partner or another shape, or one is lacking.
    """
    _check_sizes(model, dense, source)
    fresh = [] if keep_head else list(_HEADS)
    transferred = {name: tensor for name, tensor in dense.items() if not name.startswith(tuple(fresh))}
    if not any(name.startswith("fc_norm.") for name in transferred):
        fresh.append("fc_norm.")
    has_bias = any(name.endswith(".mlp.fc1.bias") for name in transferred)
    # Before any noise is drawn, so that a seed's routers are the same with and without it.
    for layer in moe_layers(model).values():
        gate = getattr(layer.router, "gate", None)
        if isinstance(gate, nn.Linear):
            nn.init.normal_(gate.weight, std=_ROUTER_STD)
    for name, layer in moe_layers(model).items():
        assert isinstance(layer.experts, MlpExperts)
        fresh.append(f"{name}.mlp.router.")
        for part in ("fc1", "fc2"):
            theirs, ours = f"{name}.mlp.{part}", f"{name}.mlp.experts.{part}"
            if f"{theirs}.weight" not in transferred or (has_bias and f"{theirs}.bias" not in transferred):
                raise UserError(f"{source} lacks {theirs}, a dense perceptron, to make experts of.")
            weight = transferred.pop(f"{theirs}.weight")
            copies = weight.T.expand(layer.experts.num_experts, *weight.T.shape)
            if noise:
                copies = copies + noise * weight.std() * torch.randn(copies.shape, dtype=weight.dtype)
            # A perceptron without bias is one whose bias is zero.
            bias = transferred.pop(f"{theirs}.bias") if has_bias else weight.new_zeros(len(weight))
            transferred[f"{ours}.weight"] = copies
            transferred[f"{ours}.bias"] = bias.expand(layer.experts.num_experts, *bias.shape)
    transfer(model, transferred, fresh=tuple(fresh), source=source, advice="is it a model of another kind?")


def _check_sizes(model: VisionTransformer, dense: Mapping[str, Tensor], source: str) -> None:
    """Say of another size that it is one, before single parameters are compared."""
    blocks = {name.split(".")[1] for name in dense if name.startswith("blocks.")}
    norm = dense.get("blocks.0.norm1.weight")
    if norm is None:
        raise UserError(f"{source} holds no vision transformer of timm: it lacks blocks.0.norm1.weight.")
    of_weights, of_model = (len(blocks), len(norm)), (len(model.blocks), model.embed_dim)
    if of_weights != of_model:
        raise UserError(
            f"{source} has {of_weights[0]} blocks of width {of_weights[1]}, the model to fill {of_model[0]} of "
            f"width {of_model[1]}: name the model that the weights are of."
        )


# Copy parameters between vision transformers by name; resample positions; every mismatch is an error.


def transfer(
    model: VisionTransformer,
    tensors: Mapping[str, Tensor],
    *,
    fresh: tuple[str, ...],
    source: str,
    advice: str,
) -> None:
    """Put ``tensors`` into ``model``, in place.

    Args:
        model: takes over every tensor, which must have a partner of its shape; of the grid of position embeddings the
            size may differ.
        tensors: by the model's names.
        fresh: beginnings of names that need no tensor and stay as they were initialized.
        source: what the tensors are from, for sentences.
        advice: ends the sentence where a parameter of the model is lacking.

    Raises:
        UserError: a tensor has no partner or another shape, or a parameter gets none.
    """
    model_state, transferred = model.state_dict(), dict(tensors)
    if "pos_embed" in transferred and "pos_embed" in model_state:
        rows, columns = model.patch_embed.grid_size
        transferred["pos_embed"] = resize_position_embedding(
            transferred["pos_embed"],
            num_prefix=0 if model.no_embed_class else model.num_prefix_tokens,
            rows=rows,
            columns=columns,
        )
    for name, tensor in transferred.items():
        if name not in model_state or model_state[name].shape != tensor.shape:
            shape = tuple(model_state[name].shape) if name in model_state else "no such parameter"
            hint = f"; set model.router.slots={tensor.shape[-1]}" if name.endswith(".router.phi") else ""
            raise UserError(
                f"{source} does not fit the configured model: {name} is {tuple(tensor.shape)} there, "
                f"{shape} here{hint}."
            )
    missing = [name for name in model_state if name not in transferred and not name.startswith(fresh)]
    if missing:
        raise UserError(f"{source} lacks {missing[0]} of the configured model; {advice}")
    with torch.no_grad():
        model.load_state_dict(transferred, strict=False)
