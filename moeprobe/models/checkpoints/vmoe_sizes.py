"""The sizes of a V-MoE, read off the shapes of its parameters.

What leaves no trace in them (top-k, capacity, groups, normalization) cannot be read off.
"""

import math
import re
from collections.abc import Mapping

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.vmoe_names import Architecture, Shape, parameters
from moeprobe.runtime.characters import quoted

_BLOCK = re.compile(r"Encoder/encoderblock_(\d{1,4})/")
_ROUTER = re.compile(r"Encoder/encoderblock_(\d{1,4})/Moe/Router/dense/kernel")


def infer(shapes: Mapping[str, Shape], *, source: str) -> Architecture:
    """Return the one architecture that has just these parameters.

    Args:
        shapes: of all parameters, by V-MoE's names.
        source: what is said to be wrong when something is.

    Raises:
        UserError: a parameter is missing, not known, or of a shape that does not fit the others.
    """
    sizes = _sizes(shapes, source)
    expected = {name: parameter.shape for parameter in parameters(sizes) for name in parameter.theirs}
    unknown = [quoted(name) for name in shapes if name not in expected]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UserError(
            f"{source} holds parameters that a V-MoE of {sizes.depth} blocks does not have: "
            f"{', '.join(unknown[:3])}{more}."
        )
    for name, shape in expected.items():
        if name not in shapes:
            raise UserError(f"{source} lacks the parameter {quoted(name)}.")
        if shapes[name] != shape:
            raise UserError(
                f"{source} does not fit together: {quoted(name)} is {shapes[name]}, but by the others it should "
                f"be {shape}."
            )
    return sizes


def _sizes(shapes: Mapping[str, Shape], source: str) -> Architecture:
    """Return the sizes that the parameters tell, each read in one place."""

    def shape(name: str, axes: int) -> Shape:
        if name not in shapes:
            raise UserError(
                f"{source} is no V-MoE that is known here: it lacks the parameter {quoted(name)}."
            )
        if len(shapes[name]) != axes or 0 in shapes[name]:
            raise UserError(f"{source} is no V-MoE that is known here: {quoted(name)} is {shapes[name]}.")
        return shapes[name]

    height, patch_size, _, width = shape("embedding/kernel", 4)
    if height != patch_size:
        raise UserError(
            f"{source} has patches of {height} x {patch_size} pixels; only square ones are known."
        )
    blocks = {int(match[1]) for name in shapes if (match := _BLOCK.match(name))}
    if blocks != set(range(len(blocks))):
        raise UserError(f"{source} lacks a block: it has {', '.join(map(str, sorted(blocks)[:50]))}.")
    layers = tuple(sorted(int(match[1]) for name in shapes if (match := _ROUTER.fullmatch(name))))
    if not layers:
        raise UserError(f"{source} has no MoE layer, so there is no routing to probe.")
    num_experts, _, hidden_width = shape(f"Encoder/encoderblock_{layers[0]}/Moe/Mlp/Dense_0/kernel", 3)
    shape("cls", 3)  # a head that reads no class token has other parameters
    patches = shape("Encoder/posembed_input/pos_embedding", 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side == 0 or side * side != patches:
        raise UserError(f"{source} has position embeddings of {patches} patches, which form no square.")
    return Architecture(
        width=width,
        depth=len(blocks),
        num_heads=shape("Encoder/encoderblock_0/SelfAttention/query/kernel", 3)[1],
        hidden_width=hidden_width,
        patch_size=patch_size,
        image_size=side * patch_size,
        num_classes=shape("head/kernel", 2)[1],
        num_experts=num_experts,
        layers=layers,
        pre_logits=shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in shapes else 0,
    )
