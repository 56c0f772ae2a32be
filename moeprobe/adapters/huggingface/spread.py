"""A model of ``transformers`` that several processes hold together, spread by the library's own plan.

Two plans: of *experts*, each process holds whole experts, and all of the rest; a *tensor* plan cuts the matrices of
attention and experts. Either way, every process sees every token, routers are whole in each, and parts of the output
are added up among the processes. Which parameters are cut is said by the library's configurations of the families.

Axes: E experts.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.runtime.extras import is_older, outdated_package
from moeprobe.runtime.spread import EXPERTS, REPLICAS, TENSOR, ModelGroup, current_group

# Styles of the library that cut the axis of the outputs, and that of the inputs.
_OUTPUTS = ("colwise", "packed_colwise")
_INPUTS = ("rowwise", "packed_rowwise")
# The first transformers that spreads experts without sending tokens among processes.
_SPREADING = "5.23"
# What families call their numbers of heads.
_HEADS = ("num_attention_heads", "num_key_value_heads")


def spread_keywords(outline: Any, config: Any) -> dict[str, Any]:
    """Return with which keywords the library loads a model for the processes that share it; none where none do.

    Args:
        outline: the model, built without memory.
        config: of the model.

    Raises:
        UserError: it cannot be spread over these processes, or transformers is too old to.
    """
    group = current_group()
    if group is None:
        return {}
    if is_older("transformers", _SPREADING):
        raise outdated_package(option("parallel"), "transformers", _SPREADING)
    from transformers.distributed import DistributedConfig

    check_plan(outline, config, group)
    _connect(group)
    if group.share == EXPERTS:
        # An empty plan of tensors is refused by the library, so one that leaves all of them whole.
        uncut = dict.fromkeys(outline.tp_plan or [name for name, _ in outline.named_children()], "replicate")
        plan = {"ep_size": group.size, "ep_implementation": "all_reduce", "tp_plan": uncut}
    else:
        plan = {"tp_plan": "auto"}
    return {"distributed_config": DistributedConfig(tp_size=group.size, **plan)}


def check_plan(outline: Any, config: Any, group: ModelGroup) -> None:
    """Raise ``UserError`` where a family has no plan, or its sizes do not divide by the number of processes."""
    kind, size = config.model_type, group.size
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(
            f"Its weights are quantized, and {option('parallel')} spreads no quantized weights; leave it out."
        )
    plan = _expand_plan(outline, outline.ep_plan if group.share == EXPERTS else outline.tp_plan)
    if group.share == EXPERTS and "ep_dispatch_experts" not in plan.values():
        raise UserError(_no_plan(kind, EXPERTS, TENSOR if outline.tp_plan else REPLICAS))
    if not plan:
        raise UserError(_no_plan(kind, TENSOR, REPLICAS))
    parameters = dict(outline.named_parameters())
    cut = {name: style for name, style in plan.items() if name in parameters}
    if group.share == EXPERTS:
        experts = {parameters[name].shape[0] for name, style in cut.items() if style == "grouped_gemm"}
        odd = next((number for number in sorted(experts) if number % size), None)
        if odd is not None:
            raise UserError(_describe_remainder(f"{odd} experts", size))
        return
    text_config = config.get_text_config()
    for name in _HEADS:
        heads = getattr(text_config, name, None)
        if isinstance(heads, int) and heads % size:
            raise UserError(_describe_remainder(f"{heads} heads ({name})", size))
    for name, style in cut.items():
        shape = parameters[name].shape
        # Stacked experts have an axis before; biases have no inputs, and are whole where the output is.
        length = (
            shape[-2 if len(shape) > 1 else -1] // (2 if style == "packed_colwise" else 1)
            if style in _OUTPUTS
            else shape[-1] // (2 if style == "packed_rowwise" else 1)
            if style in _INPUTS and len(shape) > 1
            else size
        )
        if length % size:
            raise UserError(_describe_remainder(f"{length} rows or columns of {name}", size))


def _expand_plan(outline: Any, plan: dict[str, str] | None) -> dict[str, str]:
    """Return the styles of the parameters and modules that a plan names."""
    return dict(outline._expand_parallel_plan(plan)) if plan else {}


def _no_plan(kind: str, share: str, instead: str) -> str:
    return (
        f"A model of type {kind!r} has no plan in transformers that spreads its {_WORDS[share]}; use "
        f"{option('parallel', instead)}."
    )


_WORDS = {EXPERTS: "experts", TENSOR: "tensors"}


def _describe_remainder(parts: str, size: int) -> str:
    return f"Its {parts} cannot be shared by {size} processes; take a number that divides them."


def _connect(group: ModelGroup) -> None:
    """Make the process group in which the library sends messages."""
    from moeprobe.runtime.distributed import own_device

    # The library takes the accelerator that there is, whatever anybody says.
    kind = torch._C._get_accelerator().type
    if kind == "cuda":
        torch.cuda.set_device(own_device("cuda"))
    group.members.connect(kind)


def local_part(parameter: Tensor, number: int) -> list[Tensor]:
    """Return what this process holds of expert ``number`` of stacked parameters ``(E, ...)``; empty = nothing."""
    distributed: Any = parameter
    if not is_spread([parameter]):
        return [parameter[number]]
    with torch.no_grad():
        local: Tensor = distributed.to_local()
    if not any(placement.is_shard(0) for placement in distributed.placements):
        return [local[number]]
    # All processes hold as many experts, one after the other.
    first = distributed.device_mesh.get_local_rank() * len(local)
    return [local[number - first]] if first <= number < first + len(local) else []


def is_spread(parameters: Iterable[Tensor]) -> bool:
    """Whether any of these parameters is held in parts, as torch's distributed tensors are."""
    return any(hasattr(parameter, "placements") for parameter in parameters)
