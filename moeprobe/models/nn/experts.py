"""E networks of the same shape, held as stacked parameters and run together.

Axes: E experts, N rows, D width, M hidden width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeprobe.models.nn.sorted_experts import sorted_affine, sorted_mlp

# Numbers in an expert's matrix from which on an expert's hidden units are computed again in the backward pass, right
# where they are used: with fewer, starting so many small steps costs more than memory does.
LARGE_MATRIX = 2**18
# One batched product is quicker where no expert has more than so many rows above its share, since a product of its own
# costs as much as they do: the more, the smaller the matrix. With large matrices only up to so many rows an expert
# (measured on a CPU with matrices of 384 × 1,536, 192 × 768 and 64 × 128).
FEW_ROWS, SPARE_ROWS, SPARE_NUMBERS = 512, 8, 2**20
# With small matrices and fewer tokens an expert than this, one product for all experts is as quick or quicker.
SMALL_SHARE = 256


class StackedExperts(nn.Module, ABC):
    """What the dispatcher asks of experts; they never learn which router sent the tokens."""

    num_experts: int

    def forward(self, rows: Tensor, loads: Tensor | None = None) -> Tensor:
        """Run expert e on ``rows[e]`` of ``(E, N, D)``, or, with ``loads``, on its part of sorted rows ``(N, D)``."""
        return self.run_padded(rows) if loads is None else self.run_ragged(rows, loads)

    def prefer_sorted(self, rows: Tensor) -> bool:
        """Whether rows ``(N, D)`` like these are better sorted than padded, however even the loads are."""
        return False

    @abstractmethod
    def run_padded(self, rows: Tensor) -> Tensor:
        """Run expert e on ``rows[e]``: ``(E, N, D)`` to ``(E, N, D)``."""

    @abstractmethod
    def run_ragged(self, rows: Tensor, loads: Tensor) -> Tensor:
        """Run the experts on rows ``(N, D)`` sorted by expert, ``loads`` ``(E,)`` of them each."""


class ExpertLinear(nn.Module):
    """One affine map per expert: weight ``(E, D_in, D_out)``, bias ``(E, D_out)``."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(num_experts, out_features))
        for weight in self.weight.data:
            nn.init.xavier_uniform_(weight)

    # baddbmm adds the bias in the same kernel.
    def forward(self, rows: Tensor) -> Tensor:
        """Map ``(E, N, D_in)`` to ``(E, N, D_out)``."""
        return torch.baddbmm(self.bias[:, None], rows, self.weight)

    def run_ragged(self, rows: Tensor, loads: Tensor) -> Tensor:
        """Map rows ``(N, D_in)`` sorted by expert to ``(N, D_out)``."""
        bias = self.bias.repeat_interleave(loads, dim=0, output_size=len(rows))
        return _grouped_product(rows, self.weight, loads) + bias

    def copy_linear(self, linear: nn.Linear) -> None:
        """Make every expert a copy of ``linear``."""
        with torch.no_grad():
            self.weight.copy_(linear.weight.T.expand_as(self.weight))
            if linear.bias is not None:
                self.bias.copy_(linear.bias.expand_as(self.bias))


def _grouped_product(rows: Tensor, weight: Tensor, loads: Tensor) -> Tensor:
    """Return ``rows[i] @ weight[expert of i]``, rows being sorted by expert."""
    if has_grouped_kernel(rows, weight):
        # The kernel takes the ends of the groups as 32-bit numbers.
        return F.grouped_mm(rows, weight, offs=loads.cumsum(0).to(torch.int32))
    # unbind, not indexing: autograd would build a full-size zero gradient for every weight[e].
    parts = zip(rows.split(loads.tolist()), weight.unbind(0), strict=True)
    return torch.cat([part @ matrix for part, matrix in parts])


def has_grouped_kernel(rows: Tensor, weight: Tensor) -> bool:
    """Whether torch's grouped product takes these: not float64, no autocast, strides in multiples of 16 bytes."""
    if rows.dtype != weight.dtype or rows.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if rows.device.type not in ("cpu", "cuda") or torch.is_autocast_enabled(rows.device.type):
        return False
    return all(size * rows.element_size() % 16 == 0 for size in weight.shape[1:]) and len(rows) > 0


class MlpExperts(StackedExperts):
    """Two-layer perceptrons.

    Dropout follows both layers and uses one mask for all experts, as V-MoE's program does (its experts share the
    random key): the mask belongs to the slot, not to the expert.
    """

    def __init__(
        self,
        num_experts: int,
        width: int,
        hidden_width: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.fc1 = ExpertLinear(num_experts, width, hidden_width)
        self.fc2 = ExpertLinear(num_experts, hidden_width, width)
        self.activation = activation or nn.GELU(approximate="tanh")
        self.dropout = dropout

    def prefer_sorted(self, rows: Tensor) -> bool:
        """Whether one product after the other is as quick as a batched one, and wastes nothing: on a CPU."""
        weight = self.fc1.weight
        return (
            (weight[0].numel() >= LARGE_MATRIX or len(rows) >= SMALL_SHARE * len(weight))
            and not (self.dropout and self.training)
            and rows.device.type == "cpu"
            and rows.dtype == weight.dtype
            and not torch.is_autocast_enabled("cpu")
        )

    def run_padded(self, rows: Tensor) -> Tensor:
        """Run expert e on ``rows[e]``: ``(E, N, D)`` to ``(E, N, D)``."""
        hidden = self._drop(self.activation(self.fc1(rows)))
        return self._drop(self.fc2(hidden))

    def run_ragged(self, rows: Tensor, loads: Tensor) -> Tensor:
        """Run the experts on rows ``(N, D)`` sorted by expert, ``loads`` ``(E,)`` of them each."""
        if self.prefer_sorted(rows):
            load_list = loads.tolist()
            share, size = len(rows) / len(load_list), self.fc1.weight[0].numel()
            spare_rows = max(SPARE_ROWS, min(SPARE_NUMBERS / size, share / 2))
            is_even = max(load_list) <= share + spare_rows
            if is_even and (share < FEW_ROWS or size < LARGE_MATRIX):
                return self._pad(rows, loads, depth=max(load_list))
            if size < LARGE_MATRIX:
                hidden = sorted_affine(rows, self.fc1.weight, self.fc1.bias, load_list)
                return sorted_affine(self.activation(hidden), self.fc2.weight, self.fc2.bias, load_list)
            parameters = (self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)
            return sorted_mlp(rows, parameters, self.activation, load_list)
        hidden = F.dropout(self.activation(self.fc1.run_ragged(rows, loads)), self.dropout, self.training)
        return F.dropout(self.fc2.run_ragged(hidden, loads), self.dropout, self.training)

    def _pad(self, rows: Tensor, loads: Tensor, *, depth: int) -> Tensor:
        """Run sorted rows with as many places for every expert; empty ones hold other rows, which nobody reads."""
        start = (loads.cumsum(0) - loads)[:, None]
        position = torch.arange(depth, device=rows.device)
        source = start + position.minimum(loads[:, None] - 1)
        outputs = self.run_padded(
            rows.index_select(0, source.clamp_min(0).flatten()).view(len(loads), depth, -1)
        )
        filled = (position < loads[:, None]).flatten().nonzero().squeeze(1)
        return outputs.flatten(0, 1).index_select(0, filled)

    def _drop(self, rows: Tensor) -> Tensor:
        if not self.training or self.dropout == 0:
            return rows
        # One mask for all experts: the first axis has size 1 and is broadcast.
        return rows * F.dropout(rows.new_ones(1, *rows.shape[1:]), self.dropout)
