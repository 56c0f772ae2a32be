"""Names and layouts of V-MoE's parameters in its program, and in moeprobe.

Axes: D width, M hidden width, E experts, H heads, P patch size, N patches, C classes.

Source: the released program of V-MoE; its layers are flax's, whose kernels are (in, out) and (height, width, in, out).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
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
class Layout:
    """How a parameter of ours is made of theirs, and theirs of it."""

    to_ours: Callable[[Sequence[Tensor]], Tensor]
    to_theirs: Callable[[Tensor, Architecture], Sequence[Tensor]]


@dataclass(frozen=True)
class Parameter:
    """A parameter of ours, and the names and shapes of those of theirs that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    shape: Shape
    layout: Layout


def _split_heads(kernel: Tensor, sizes: Architecture) -> Sequence[Tensor]:
    return [part.T.reshape(sizes.width, sizes.num_heads, -1) for part in kernel.chunk(3)]


_SAME = Layout(lambda parts: parts[0], lambda ours, _: [ours])
_LINEAR = Layout(lambda parts: parts[0].T, lambda ours, _: [ours.T])
_CONVOLUTION = Layout(lambda parts: parts[0].permute(3, 2, 0, 1), lambda ours, _: [ours.permute(2, 3, 1, 0)])
# Query, key and value are three there, each with an axis of heads; here they are one, its rows below one another.
_HEADS_IN = Layout(lambda parts: torch.cat([part.flatten(1).T for part in parts]), _split_heads)
_HEADS_BIAS = Layout(
    lambda parts: torch.cat([part.flatten() for part in parts]),
    lambda ours, sizes: [part.reshape(sizes.num_heads, -1) for part in ours.chunk(3)],
)
_HEADS_OUT = Layout(
    lambda parts: parts[0].flatten(0, 1).T,
    lambda ours, sizes: [ours.T.reshape(sizes.num_heads, -1, sizes.width)],
)


def parameters(sizes: Architecture) -> Iterator[Parameter]:
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


def _block(sizes: Architecture, ours: str, theirs: str, sparse: bool) -> Iterator[Parameter]:
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


def to_state_dict(read: Callable[[str], Tensor], sizes: Architecture) -> dict[str, Tensor]:
    """Return the state of our model; ``read`` gives a parameter of theirs by name, and is called once for each."""
    return {
        parameter.ours: parameter.layout.to_ours([read(name) for name in parameter.theirs]).contiguous()
        for parameter in parameters(sizes)
    }
