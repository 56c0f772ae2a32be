"""Copy parameters between vision transformers by name; resample positions; every mismatch is an error."""

from collections.abc import Mapping

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.nn.vit import resize_position_embedding


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
    wanted, taken = model.state_dict(), dict(tensors)
    if "pos_embed" in taken and "pos_embed" in wanted:
        rows, columns = model.patch_embed.grid_size
        taken["pos_embed"] = resize_position_embedding(
            taken["pos_embed"],
            num_prefix=0 if model.no_embed_class else model.num_prefix_tokens,
            rows=rows,
            columns=columns,
        )
    for name, tensor in taken.items():
        if name not in wanted or wanted[name].shape != tensor.shape:
            shape = tuple(wanted[name].shape) if name in wanted else "no such parameter"
            hint = f"; set model.router.slots={tensor.shape[-1]}" if name.endswith(".router.phi") else ""
            raise UserError(
                f"{source} does not fit the configured model: {name} is {tuple(tensor.shape)} there, "
                f"{shape} here{hint}."
            )
    missing = [name for name in wanted if name not in taken and not name.startswith(fresh)]
    if missing:
        raise UserError(f"{source} lacks {missing[0]} of the configured model; {advice}")
    with torch.no_grad():
        model.load_state_dict(taken, strict=False)
