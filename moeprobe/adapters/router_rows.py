"""Where a router's rows are among its tensors, and which vectors of an embedding stand for all."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from moeprobe.routing.router_rows import Array

# Vectors of an embedding that its leading directions are taken from, evenly spread over it, in so many runs.
_VECTORS, _RUNS = 2048, 64


@dataclass(frozen=True)
class RowNames:
    """How a router calls its rows and its bias; "" = no bias."""

    rows: str
    bias: str = ""

    @property
    def is_bias_of_gates(self) -> bool:
        """Whether the bias is none of a linear layer: families then add it to gates, for the choice alone."""
        return bool(self.bias) and self.bias.rpartition(".")[2] != "bias"


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a router by name."""
    return dict([*module.named_parameters(), *module.named_buffers()])


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors, which may be without memory (on torch's meta device)."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def name_rows(shapes: Mapping[str, tuple[int, ...]], num_experts: int) -> RowNames | None:
    """Return which of a router's tensors has a row for each expert; None where not exactly one does."""
    rows = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] == num_experts]
    biases = [
        name for name, shape in shapes.items() if max(shape, default=0) == num_experts == np.prod(shape)
    ]
    if len(rows) != 1 or len(biases) > 1:
        return None
    return RowNames(rows[0], *biases)


def as_array(tensor: Tensor) -> Array:
    """Return numbers in float64 on the CPU."""
    return tensor.detach().to("cpu", torch.float64).numpy()


def spread_slices(number: int) -> list[slice]:
    """Return which of ``number`` vectors of an embedding are read: all, or runs evenly spread over it."""
    if number <= _VECTORS:
        return [slice(0, number)]
    starts = np.linspace(0, number - _VECTORS // _RUNS, _RUNS).astype(int)
    return [slice(int(start), int(start) + _VECTORS // _RUNS) for start in starts]
