"""Names and layouts of V-MoE's parameters in its program, and in moeprobe.

Axes: D width, M hidden width, E experts, H heads, P patch size, N patches, C classes.

Source: the released program of V-MoE; its layers are flax's, whose kernels are (in, out) and (height, width, in, out).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.runtime.characters import quote

Shape = tuple[int, ...]


@dataclass(frozen=True)
class VmoeSizes:
    """The sizes of a V-MoE.

    Attributes:
        layers: 0-based blocks with experts.
        pre_logits: width of the linear map and the tanh before the head (``representation_size``); 0 = there are none.
    """

    width: int
    depth: int
    num_heads: int
    hidden_width: int
    patch_size: int
    image_size: int
    num_classes: int
    num_experts: int
    layers: tuple[int, ...]
    pre_logits: int

    @property
    def num_tokens(self) -> int:
        """Patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


@dataclass(frozen=True)
class ParameterLayout:
    """How a parameter of ours is made of theirs, and theirs of it."""

    to_ours: Callable[[Sequence[Tensor]], Tensor]
    to_theirs: Callable[[Tensor, VmoeSizes], Sequence[Tensor]]


@dataclass(frozen=True)
class Parameter:
    """A parameter of ours, with the names and shapes of their parameters that form it."""

    ours: str
    theirs: tuple[str, ...]
    shape: Shape
    layout: ParameterLayout


def _split_heads(kernel: Tensor, sizes: VmoeSizes) -> Sequence[Tensor]:
    return [part.T.reshape(sizes.width, sizes.num_heads, -1) for part in kernel.chunk(3)]


_SAME = ParameterLayout(lambda parts: parts[0], lambda ours, _: [ours])
_LINEAR = ParameterLayout(lambda parts: parts[0].T, lambda ours, _: [ours.T])
_CONVOLUTION = ParameterLayout(
    lambda parts: parts[0].permute(3, 2, 0, 1), lambda ours, _: [ours.permute(2, 3, 1, 0)]
)
# Query, key and value are three there, each with an axis of heads; here they are one, its rows below one another.
_HEADS_IN = ParameterLayout(lambda parts: torch.cat([part.flatten(1).T for part in parts]), _split_heads)
_HEADS_BIAS = ParameterLayout(
    lambda parts: torch.cat([part.flatten() for part in parts]),
    lambda ours, sizes: [part.reshape(sizes.num_heads, -1) for part in ours.chunk(3)],
)
_HEADS_OUT = ParameterLayout(
    lambda parts: parts[0].flatten(0, 1).T,
    lambda ours, sizes: [ours.T.reshape(sizes.num_heads, -1, sizes.width)],
)


def parameters(sizes: VmoeSizes) -> Iterator[Parameter]:
    """Yield every parameter of a V-MoE of these sizes."""
    D, P = sizes.width, sizes.patch_size
    yield Parameter("cls_token", ("cls",), (1, 1, D), _SAME)
    yield Parameter("pos_embed", ("Encoder/posembed_input/pos_embedding",), (1, sizes.num_tokens, D), _SAME)
    yield Parameter("patch_embed.proj.weight", ("embedding/kernel",), (P, P, 3, D), _CONVOLUTION)
    yield Parameter("patch_embed.proj.bias", ("embedding/bias",), (D,), _SAME)
    for index in range(sizes.depth):
        yield from _block(sizes, f"blocks.{index}", f"Encoder/encoderblock_{index}", index in sizes.layers)
    yield from _norm("norm", "Encoder/encoder_norm", D)
    if sizes.pre_logits:
        yield from _linear("fc_norm.0", "pre_logits", D, sizes.pre_logits)
    yield from _linear("head", "head", sizes.pre_logits or D, sizes.num_classes)


def _block(sizes: VmoeSizes, ours: str, theirs: str, sparse: bool) -> Iterator[Parameter]:
    D, M, E, H = sizes.width, sizes.hidden_width, sizes.num_experts, sizes.num_heads
    yield from _norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0", D)
    yield from _norm(f"{ours}.norm2", f"{theirs}/LayerNorm_1", D)
    attention = f"{theirs}/SelfAttention"
    kernels, biases = (
        tuple(f"{attention}/{part}/{what}" for part in ("query", "key", "value"))
        for what in ("kernel", "bias")
    )
    yield Parameter(f"{ours}.attn.qkv.weight", kernels, (D, H, D // H), _HEADS_IN)
    yield Parameter(f"{ours}.attn.qkv.bias", biases, (H, D // H), _HEADS_BIAS)
    yield Parameter(f"{ours}.attn.proj.weight", (f"{attention}/out/kernel",), (H, D // H, D), _HEADS_OUT)
    yield Parameter(f"{ours}.attn.proj.bias", (f"{attention}/out/bias",), (D,), _SAME)
    if not sparse:
        yield from _linear(f"{ours}.mlp.fc1", f"{theirs}/Mlp/Dense_0", D, M)
        yield from _linear(f"{ours}.mlp.fc2", f"{theirs}/Mlp/Dense_1", M, D)
        return
    yield Parameter(f"{ours}.mlp.router.gate.weight", (f"{theirs}/Moe/Router/dense/kernel",), (D, E), _LINEAR)
    for layer, dense, first, second in (("fc1", "Dense_0", D, M), ("fc2", "Dense_1", M, D)):
        name = f"{theirs}/Moe/Mlp/{dense}"
        yield Parameter(f"{ours}.mlp.experts.{layer}.weight", (f"{name}/kernel",), (E, first, second), _SAME)
        yield Parameter(f"{ours}.mlp.experts.{layer}.bias", (f"{name}/bias",), (E, second), _SAME)


def _linear(ours: str, theirs: str, first: int, second: int) -> Iterator[Parameter]:
    yield Parameter(f"{ours}.weight", (f"{theirs}/kernel",), (first, second), _LINEAR)
    yield Parameter(f"{ours}.bias", (f"{theirs}/bias",), (second,), _SAME)


def _norm(ours: str, theirs: str, width: int) -> Iterator[Parameter]:
    yield Parameter(f"{ours}.weight", (f"{theirs}/scale",), (width,), _SAME)
    yield Parameter(f"{ours}.bias", (f"{theirs}/bias",), (width,), _SAME)


def to_state_dict(read: Callable[[str], Tensor], sizes: VmoeSizes) -> dict[str, Tensor]:
    """Return the state of our model; ``read`` gives a parameter of theirs by name, and is called once for each."""
    return {
        parameter.ours: parameter.layout.to_ours([read(name) for name in parameter.theirs]).contiguous()
        for parameter in parameters(sizes)
    }


# The sizes of a V-MoE, read off the shapes of its parameters.
#
# What leaves no trace in them (top-k, capacity, groups, normalization) cannot be read off.

_BLOCK = re.compile(r"Encoder/encoderblock_(\d{1,4})/")
_ROUTER = re.compile(r"Encoder/encoderblock_(\d{1,4})/Moe/Router/dense/kernel")


def infer(shapes: Mapping[str, Shape], *, source: str) -> VmoeSizes:
    """Return the one architecture that has just these parameters.

    Args:
        shapes: of all parameters, by V-MoE's names.
        source: the file that an error names.

    Raises:
        UserError: a parameter is missing, not known, or of a shape that does not fit the others.
    """
    sizes = _sizes(shapes, source)
    expected = {name: parameter.shape for parameter in parameters(sizes) for name in parameter.theirs}
    unknown = [quote(name) for name in shapes if name not in expected]
    if unknown:
        remainder = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UserError(
            f"{source} holds parameters that a V-MoE of {sizes.depth} blocks does not have: "
            f"{', '.join(unknown[:3])}{remainder}."
        )
    for name, shape in expected.items():
        if name not in shapes:
            raise UserError(f"{source} lacks the parameter {quote(name)}.")
        if shapes[name] != shape:
            raise UserError(
                f"{source} does not fit together: {quote(name)} is {shapes[name]}, but by the others it should "
                f"be {shape}."
            )
    return sizes


def _sizes(shapes: Mapping[str, Shape], source: str) -> VmoeSizes:
    """Return the sizes that the parameters tell, each read in one place."""

    def shape(name: str, axes: int) -> Shape:
        if name not in shapes:
            raise UserError(f"{source} is no V-MoE that is known here: it lacks the parameter {quote(name)}.")
        if len(shapes[name]) != axes or 0 in shapes[name]:
            raise UserError(f"{source} is no V-MoE that is known here: {quote(name)} is {shapes[name]}.")
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
    return VmoeSizes(
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
