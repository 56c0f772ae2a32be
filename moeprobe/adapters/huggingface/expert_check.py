"""Whether experts get the tokens that their router says: one expert is changed, and the tokens that change are counted.

A router and its experts are two modules, and what one hands to the other may be read in another way than it is meant.
Then the router's choice is not what the model computes with. So on opening a model, in one layer of each kind, the
parameters of one expert after the other are changed in place and put back, bit by bit. Exactly those tokens must change
that the record assigns to it. The passes end with the block that holds the experts.

Axes: N tokens of a batch, E experts, K choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moeprobe.adapters.huggingface.routers import RouterLayer
from moeprobe.adapters.huggingface.spread import is_spread, local_part
from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.torch_state import values_exchanged

# Experts that are changed in a layer: those with most tokens of the record, and those with none.
_MOST_TAKEN, _LEAST_TAKEN = 6, 2
# An expert with less than this share of the weight of a token's first, or with a smaller gate than the second, may not
# be seen in its rounded output.
_SHARE, _LEAST_GATE = 1 / 8, 1e-4
# Differences that rounding explains, in steps of the output's precision.
_STEPS = 16


@dataclass(frozen=True)
class ExpertCheck:
    """What was seen in a layer: how many experts were changed, of how many, or why none could be."""

    layer: str
    experts: int
    num_experts: int
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.layer}: not checked, {self.reason}"
        return f"{self.layer}: {self.experts} of {self.num_experts} experts changed, and exactly their tokens with them"


def check_experts(
    name: str,
    layer: RouterLayer,
    trunk: nn.Module,
    run: Callable[[], LayerRouting],
    *,
    run_until: Callable[[nn.Module], Tensor | None],
) -> ExpertCheck:
    """Compare which tokens an expert's parameters change with what the record assigns to it.

    Args:
        name: of the layer.
        layer: router and experts.
        trunk: model that holds them.
        run: records a fixed batch of texts in this layer.
        run_until: runs the same batch up to a module, and returns its output ``(N, D)``; None where it has no row for
            each token.

    Raises:
        UserError: other tokens change than the record says.
    """
    reader = layer.reader
    assert reader is not None
    num_experts = reader.num_experts
    slices = expert_parameters(layer, trunk)
    if any(value.is_meta for part in slices for value in part):
        return ExpertCheck(name, 0, num_experts, "its experts' parameters are in memory only while they run")
    # Unknown layouts of experts are common in new architectures; that is no fault.
    if not slices:
        return ExpertCheck(name, 0, num_experts, "its experts' parameters were not found")
    routing = run()
    blocks = _ancestors(trunk, layer)
    block, before = next(
        ((block, output) for block in blocks if (output := run_until(block)) is not None), (None, None)
    )
    if block is None or before is None:
        return ExpertCheck(name, 0, num_experts, "no block around it gives a row for each token")
    # The control: a second pass must give the same numbers.
    again = run_until(block)
    assert again is not None
    if bool(_differing_rows(before, again).any()):
        return ExpertCheck(name, 0, num_experts, "the model gives other numbers in a second pass")
    assigned, visible = _tokens_by_expert(routing)
    numbers = _experts_to_change(assigned, len(slices))
    for number in numbers:
        with values_exchanged(slices[number], _far_from):
            after = run_until(block)
        assert after is not None
        got = _differing_rows(before, after)
        # A large weight must show, a small one may; a change without an assignment is always wrong.
        wrong = (got & ~assigned[:, number]) | (~got & visible[:, number])
        if bool(wrong.any()):
            raise UserError(
                f"The experts of {name} ({type(layer.module).__name__}) do not follow their router: a change of expert "
                f"{number} changes {int(got.sum())} of {len(got)} tokens, and the router assigns it "
                f"{int(assigned[:, number].sum())}. Use a version of transformers whose experts follow the router."
            )
    return ExpertCheck(name, len(numbers), num_experts)


def expert_parameters(layer: RouterLayer, trunk: nn.Module) -> list[list[Tensor]]:
    """Return views of the parameters of each expert; empty where they are not recognized, or cannot be scaled.

    Experts are modules in a list, or stacked along the first axis of parameters, which may be flattened with the next.
    """
    assert layer.reader is not None
    experts = layer.experts
    # Modules are surer than parameters with E rows.
    modules = [] if experts is None else _expert_modules(experts)
    if modules:
        slices: list[list[Tensor]] = [list(module.parameters()) for module in modules]
    else:
        # The router's own weight has E rows, too.
        router = {id(parameter) for parameter in layer.module.parameters()}
        holder = _parent(trunk, layer.module) if experts is None else experts
        parameters: list[Tensor] = [
            parameter for parameter in holder.parameters() if id(parameter) not in router
        ]
        slices = _slices_by_expert(
            parameters, layer.reader.num_experts, getattr(experts, "num_experts", None)
        )
    # A value of one byte (quantized) cannot be moved far and back.
    usable = all(value.is_floating_point() and value.dtype.itemsize > 1 for part in slices for value in part)
    # Where several processes hold the experts, this one may have no part of some.
    is_whole = all(slices) or (experts is not None and any(slices) and is_spread(experts.parameters()))
    return slices if usable and is_whole else []


def _expert_modules(experts: nn.Module) -> list[nn.Module]:
    """Return experts that are modules of a list or a dictionary, in which others without parameters may be."""
    if not isinstance(experts, nn.ModuleDict | nn.ModuleList):
        return []
    return [module for module in experts.children() if next(module.parameters(), None) is not None]


def _slices_by_expert(
    parameters: Sequence[Tensor], num_experts: int, module_count: object
) -> list[list[Tensor]]:
    """Return the slices of stacked parameters of each expert.

    A router may have more places than there are experts, for tokens that skip the layer. Flattened parameters do not
    say how many experts they hold, so their module or the router says it.
    """
    # Stacks have three axes: experts and a matrix.
    lengths = {
        len(parameter)
        for parameter in parameters
        if parameter.ndim == 3 and 1 < len(parameter) <= num_experts
    }
    if lengths:
        stacks = [parameter for parameter in parameters if parameter.ndim > 1 and len(parameter) in lengths]
        return [
            [part for stack in stacks for part in local_part(stack, number)] for number in range(min(lengths))
        ]
    is_count = isinstance(module_count, int) and 1 < module_count <= num_experts
    count = int(module_count) if is_count else num_experts  # type: ignore[call-overload]
    # Flattened stacks have E × rows.
    flat = [parameter for parameter in parameters if parameter.ndim == 2 and len(parameter) > count]
    if not flat or any(len(parameter) % count for parameter in flat):
        return []
    return [[stack.view(count, -1)[number] for stack in flat] for number in range(count)]


def _parent(trunk: nn.Module, module: nn.Module) -> nn.Module:
    path = next(name for name, candidate in trunk.named_modules() if candidate is module)
    return trunk.get_submodule(path.rpartition(".")[0])


def _ancestors(trunk: nn.Module, layer: RouterLayer) -> list[nn.Module]:
    """Return the modules around a router up to its block of the model, the nearest first."""
    path = next(name for name, candidate in trunk.named_modules() if candidate is layer.module)
    parts = path.split(".")
    modules = []
    # From the inside out, up to the numbered block: outside of it other layers would run as well.
    for depth in range(len(parts) - 1, 0, -1):
        modules.append(trunk.get_submodule(".".join(parts[:depth])))
        if parts[depth - 1].isdigit():
            break
    return modules


def _far_from(value: Tensor) -> Tensor:
    """Return other values, far enough to be seen in a rounded output; zeros change too, by the size of the others."""
    size = value.abs().float().mean()
    # Scaled and turned around: -4 times the value is far, and finite in half precision.
    return value * -4 + torch.where(size > 0, size, torch.ones_like(size)).to(value.dtype)


def _differing_rows(before: Tensor, after: Tensor) -> Tensor:
    """Return which rows differ by more than rounding ``(N,)``."""
    rounding = _STEPS * torch.finfo(before.dtype).eps * before.float().abs().amax(-1)
    difference = (after.float() - before.float()).abs().amax(-1)
    return ~(difference <= rounding)  # NaN is a change


def _tokens_by_expert(routing: LayerRouting) -> tuple[Tensor, Tensor]:
    """Return the tokens of each expert ``(N, E)`` in the record, and where its weight is large enough to be seen."""
    num_experts = routing.num_experts
    selected = routing.selected.long().flatten(0, 1)
    processed = routing.processed.flatten(0, 1) & (selected >= 0)
    weights = routing.gates.float().flatten(0, 1).gather(1, selected.clamp_min(0)).masked_fill(~processed, 0)
    large = processed & (weights >= _SHARE * weights.amax(1, keepdim=True)) & (weights > _LEAST_GATE)
    none = torch.zeros(len(selected), num_experts, dtype=torch.int64, device=selected.device)
    assigned, visible = (
        none.scatter_add(1, selected.clamp_min(0), choices.long()) > 0 for choices in (processed, large)
    )
    return assigned, visible


def _experts_to_change(assigned: Tensor, count: int) -> list[int]:
    """Return some experts with most tokens and some with least, of the first ``count``."""
    order = assigned[:, :count].sum(0).argsort(descending=True, stable=True).tolist()
    # The busiest have most tokens to be wrong about; the idle ones must change none.
    return order if len(order) <= _MOST_TAKEN + _LEAST_TAKEN else order[:_MOST_TAKEN] + order[-_LEAST_TAKEN:]
