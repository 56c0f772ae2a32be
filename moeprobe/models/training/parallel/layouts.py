"""What each of several processes holds of the model that they train together.

``replicas``: all of it. ``experts``: all but the experts, of which it has a share. ``fsdp``: a share of every
parameter, put together block by block while a pass runs through it (torch's ``fully_shard``). Beside it, a process
holds gradients and what the optimizer remembers of the same parameters.

Experts that are spread over processes get their tokens from all of them, and send back what they make of them. Axes: E
experts of a layer, P processes that share them, N rows, D width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.config import TrainConfig
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.experts import ExpertLinear, StackedExperts
from moeprobe.models.timm import VisionTransformer
from moeprobe.models.training.optimize import gradient_norm
from moeprobe.runtime.distributed import Alone, Ranks

if TYPE_CHECKING:
    from moeprobe.models.training.parallel.sharded import Mesh

# Those that treat every number of a parameter for itself, so that a share of it is updated as the whole would be.
_ELEMENTWISE = ("adam", "adamw", "momentum", "nadam", "nadamw", "rmsprop", "sgd")


class ProcessLayout:
    """All of the model in every process.

    Attributes:
        ranks: all processes.
        sharded: whether the state of a run is written in parts.
        in_step: whether all processes must run the model at the same time, in evaluations too.
    """

    in_step = False

    def __init__(self, ranks: Ranks | Alone, *, sharded: bool = False) -> None:
        self.ranks, self.sharded = ranks, sharded

    def average(self, model: nn.Module) -> None:
        """Average gradients of this process' part of a batch over the whole batch."""
        self.ranks.average([parameter.grad for parameter in model.parameters() if parameter.grad is not None])

    def norm(self, model: nn.Module) -> Tensor:
        """Return the norm of all gradients together."""
        return gradient_norm(model)

    def full_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors of parameters, by name, as tensors of the whole model.

        A tensor of which this process holds a part stays one, but knows it (a ``DTensor``).
        """
        return dict(tensors)

    def part(self, tensor: Any) -> Tensor:
        """Return what the model of this process has of a tensor that is laid out as ``full_tensors`` gives it."""
        part: Tensor = tensor
        return part


class SpreadLayout(ProcessLayout):
    """A share of the experts in every process.

    Args:
        ranks: all processes.
        model: whose experts are spread, in place; on the CPU still, so that a device never holds all of them.
        row: how many processes share the experts.
        device: where the model is trained.
    """

    in_step = True

    def __init__(self, ranks: Ranks, model: nn.Module, *, row: int, device: torch.device) -> None:
        from moeprobe.models.training.parallel.sharded import Mesh

        super().__init__(ranks, sharded=True)
        self._mesh = Mesh(ranks, row, device)
        self._names = set()
        for name, module in moe_layers(model).items():
            keep_share(module.experts, self._mesh)
            module.shared_experts = SpreadExperts(module.experts, self._mesh)
            self._names |= {
                f"{name}.mlp.experts.{parameter}" for parameter, _ in module.experts.named_parameters()
            }

    def average(self, model: nn.Module) -> None:
        """Average gradients of this process' part of a batch, experts included, over the whole batch."""
        common, shares = [], []
        for name, parameter in model.named_parameters():
            if name in self._names and parameter.requires_grad:
                # Experts that no token of this step came to have a gradient of 0, as they have where there are all.
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                shares.append(parameter.grad)
            elif parameter.grad is not None:
                common.append(parameter.grad)
        self.ranks.average(common)
        self._mesh.average(shares)

    def norm(self, model: nn.Module) -> Tensor:
        """Return the norm of all gradients together, experts of other processes included."""
        gradients = {
            name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
        }
        shares = [
            self._mesh.full_tensor(gradient) for name, gradient in gradients.items() if name in self._names
        ]
        common = [gradient for name, gradient in gradients.items() if name not in self._names]
        norms = [nn.utils.get_total_norm(common)] if common else []
        if shares:
            with self.ranks.watching():
                together: Any = nn.utils.get_total_norm(shares)
                norms.append(together.full_tensor())
        return nn.utils.get_total_norm(norms)

    def full_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors as tensors of the whole model; experts become a partial ``DTensor``."""
        return {
            name: self._mesh.full_tensor(tensor) if name in self._names else tensor
            for name, tensor in tensors.items()
        }

    def part(self, tensor: Any) -> Tensor:
        """Return what the model of this process has of a tensor that is laid out as ``full_tensors`` gives it."""
        part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return part


class FullyShardedLayout(ProcessLayout):
    """A share of every parameter in every process.

    Args:
        ranks: all processes.
        model: is laid out in place.
        device: where the model is trained; it is moved there.
    """

    in_step = True

    def __init__(self, ranks: Ranks, model: VisionTransformer, *, device: torch.device) -> None:
        from moeprobe.models.training.parallel.sharded import shard

        super().__init__(ranks, sharded=True)
        shard(model.to(device), model.blocks, ranks, device)

    def average(self, model: nn.Module) -> None:
        """Leave gradients: the backward pass has already reduced them over the whole batch."""

    def norm(self, model: nn.Module) -> Tensor:
        """Return the norm of all gradients together."""
        with self.ranks.watching():
            norm: Any = super().norm(model)
            full_norm: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return full_norm


def gather_tensors(layout: ProcessLayout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors, put together from all processes, which call this at the same time: to the first's CPU.

    One after the other: a device holds one whole tensor at a time.
    """
    full_tensors = {}
    for name, tensor in layout.full_tensors(tensors).items():
        with layout.ranks.watching():
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if layout.ranks.rank == 0:
            full_tensors[name] = full.detach().cpu()
    return full_tensors


def make_layout(
    config: TrainConfig, model: VisionTransformer, ranks: Ranks | Alone, *, device: torch.device
) -> ProcessLayout:
    """Lay a model, of which every process has all, out over the processes, in place.

    Raises:
        UserError: it cannot be laid out so.
    """
    if config.parallel == "replicas":
        return ProcessLayout(ranks)
    optimizer = config.optimizer.name
    if optimizer not in _ELEMENTWISE:
        raise UserError(
            f"The optimizer {optimizer!r} may need whole parameters, of which a process has parts with "
            f"parallel={config.parallel}; take one of {', '.join(_ELEMENTWISE)}, or parallel=replicas."
        )
    if config.parallel == "experts":
        row = _row(config, model, ranks.size)
        if not isinstance(ranks, Alone):
            return SpreadLayout(ranks, model, row=row, device=device)
        return ProcessLayout(ranks, sharded=True)
    single = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if single:
        raise UserError(
            f"torch's fully_shard cuts no single number, as {single[0]} is; take another router, or parallel=experts."
        )
    if not isinstance(ranks, Alone):
        return FullyShardedLayout(ranks, model, device=device)
    return ProcessLayout(ranks, sharded=True)


def _row(config: TrainConfig, model: nn.Module, number: int) -> int:
    """Return how many processes of a number share the experts of a layer."""
    layers = moe_layers(model)
    if not layers:
        raise UserError("parallel=experts spreads experts, and a dense model has none; leave it out.")
    experts = math.gcd(*(layer.router.num_experts for layer in layers.values()))
    row = config.expert_ranks or math.gcd(number, experts)
    if number % row or experts % row:
        raise UserError(
            f"{experts} experts of a layer cannot be spread over groups of {row} of {number} processes; make "
            "expert_ranks a divisor of both, or leave it out."
        )
    return row


def keep_share(experts: StackedExperts, exchange: "Mesh") -> None:
    """Leave to this process its E / P experts, in place: those from row_rank · E / P on."""
    share = experts.num_experts // exchange.size
    share_slice = slice(exchange.row_rank * share, (exchange.row_rank + 1) * share)
    for layer in experts.modules():
        if isinstance(layer, ExpertLinear):
            for name, parameter in list(layer.named_parameters()):
                share_parameter = nn.Parameter(
                    parameter.detach()[share_slice].clone(), requires_grad=parameter.requires_grad
                )
                setattr(layer, name, share_parameter)
    experts.num_experts = share


@dataclass(frozen=True)
class SpreadExperts:
    """All E experts of a layer, as a dispatcher sees them, of which this process has some.

    All processes of the exchange run it at the same time, each with tokens of its own, as many as it has.

    Attributes:
        local_experts: the experts of this process.
        exchange: the way to the others.
    """

    local_experts: StackedExperts
    exchange: "Mesh"

    def prefer_sorted(self, rows: Tensor) -> bool:
        """Whether rows are better sorted: yes, so that only rows of tokens travel."""
        return True

    def __call__(self, rows: Tensor, loads: Tensor | None = None) -> Tensor:
        """Run expert e on ``rows[e]`` of ``(E, N, D)``, or, with ``loads``, on its part of sorted rows ``(N, D)``."""
        return self._run_padded(rows) if loads is None else self._run_ragged(rows, loads)

    def _run_ragged(self, rows: Tensor, loads: Tensor) -> Tensor:
        mine = loads.view(self.exchange.size, -1)
        theirs = self.exchange.counts(mine)
        sent, received = mine.sum(1).tolist(), theirs.sum(1).tolist()
        arrived = self.exchange.rows(rows, sent, received)
        if len(arrived):
            # From (process, expert) to (expert, process), and back.
            expert = torch.arange(theirs.shape[1], device=rows.device).repeat(len(theirs))
            order = expert.repeat_interleave(theirs.flatten()).argsort(stable=True)
            outputs = self.local_experts(arrived.index_select(0, order), theirs.sum(0))
            arrived = torch.empty_like(outputs).index_copy(0, order, outputs)
        return self.exchange.rows(arrived, received, sent)

    def _run_padded(self, rows: Tensor) -> Tensor:
        number, width = rows.shape[1:]
        share = self.local_experts.num_experts
        depths = self.exchange.counts(
            torch.full((self.exchange.size, 1), number, dtype=torch.int64, device=rows.device)
        )
        depth_list = depths.flatten().tolist()
        sent, received = [share * number] * self.exchange.size, [share * depth for depth in depth_list]
        arrived = self.exchange.rows(rows.reshape(-1, width), sent, received).split(received)
        parts = [part.view(share, depth, width) for part, depth in zip(arrived, depth_list, strict=True)]
        outputs = self.local_experts(torch.cat(parts, dim=1)).split(depth_list, dim=1)
        back = torch.cat([part.reshape(-1, width) for part in outputs])
        return self.exchange.rows(back, received, sent).view(len(rows), number, width)
