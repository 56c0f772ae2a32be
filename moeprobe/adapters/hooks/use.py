"""Which experts process which tokens, whatever a router says: where one expert's parameters change, they change.

What comes after a top-k (a threshold, a capacity, a mask, a second choice that nobody reads) is not seen in the choice.
So the module around a router, its block, is run again on the inputs that it had, once for each expert, with that
expert's parameters changed. The tokens whose output differs are the expert's. Nothing is left changed.

Axes: B images, T tokens, E experts, D width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from moeprobe.adapters.hooks.layer import HookedLayer
from moeprobe.adapters.hooks.watch import tensors_of
from moeprobe.errors import UserError

# An expert's parameters become so many times as large, of the other sign: a token that gives the expert next to no
# weight is seen, and half precision does not overflow. What is zero is moved by a hundredth of it.
_MOVE, _LEAST_MOVE = 30.0, 0.01
# Experts kept as one tensor have at least these axes: experts, and a matrix for each.
_STACKED_AXES = 3


@dataclass(frozen=True)
class ExpertBlock:
    """The module that runs a router and its experts.

    Attributes:
        name: its name in the model; empty where it is the model itself.
        parameters: of each expert, names of parameters below the module; the index where several share a tensor.
    """

    name: str
    parameters: tuple[tuple[tuple[str, int | None], ...], ...]


@dataclass(frozen=True)
class BlockCall:
    """What a block was called with, and the state of the random numbers then."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    random_state: Tensor
    device: torch.device
    device_state: Tensor | None


def find_block(net: nn.Module, router: str, num_experts: int) -> ExpertBlock | None:
    """Return the nearest module around a router that holds E experts beside it; None where there is none.

    Experts are the E members of a list of modules, or the slices of parameters ``(E, ., .)``.
    """
    path = router
    while path:
        path = path.rpartition(".")[0]
        inside = router[len(path) + 1 :] if path else router
        parameters = _experts(net.get_submodule(path), inside, num_experts)
        if parameters:
            return ExpertBlock(path, parameters)
    return None


def _experts(
    block: nn.Module, router: str, num_experts: int
) -> tuple[tuple[tuple[str, int | None], ...], ...]:
    """Return the parameters of each expert of a block; empty where it has no experts."""
    listed: list[list[tuple[str, int | None]]] = [[] for _ in range(num_experts)]
    for name, module in block.named_modules():
        is_list = isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)
        if not is_list or len(module) != num_experts or router.startswith(f"{name}."):
            continue
        for number, (child, _) in enumerate(module.named_children()):
            of_child = module.get_submodule(child).named_parameters()
            listed[number] += [(f"{name}.{child}.{key}", None) for key, _ in of_child]
    if any(listed):
        return tuple(map(tuple, listed))
    stacked = [
        name
        for name, parameter in block.named_parameters()
        if parameter.ndim >= _STACKED_AXES
        and len(parameter) == num_experts
        and not name.startswith(f"{router}.")
    ]
    if not stacked:
        return ()
    return tuple(tuple((name, number) for name in stacked) for number in range(num_experts))


def count_experts(net: nn.Module, router: str) -> int | None:
    """Return how many members the nearest list of modules around a router has; None where there is none."""
    path = router
    while path:
        path = path.rpartition(".")[0]
        inside = router[len(path) + 1 :] if path else router
        for name, module in net.get_submodule(path).named_modules():
            if isinstance(module, nn.ModuleList | nn.ModuleDict) and not inside.startswith(f"{name}."):
                return len(module)
    return None


@contextmanager
def listening(net: nn.Module, blocks: Mapping[str, ExpertBlock]) -> Iterator[dict[str, list[BlockCall]]]:
    """Collect what the blocks of layers are called with, by layer."""
    calls: dict[str, list[BlockCall]] = {layer: [] for layer in blocks}

    def hook(layer: str) -> Any:
        def keep(_module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            # Copied: what comes after may write into them.
            copied = _copied(arguments), _copied(keywords)
            device = next((value.device for value in tensors_of(copied)), torch.device("cpu"))
            calls[layer].append(BlockCall(*copied, torch.get_rng_state(), device, _device_state(device)))

        return keep

    handles = [
        net.get_submodule(block.name).register_forward_pre_hook(hook(layer), with_kwargs=True)
        for layer, block in blocks.items()
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def used_experts(
    net: nn.Module,
    block: ExpertBlock,
    call: BlockCall,
    layer: HookedLayer,
    num_images: int,
    *,
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Tensor | None:
    """Return which experts process which tokens ``(B, T, E)`` bool; None where the block's output has no such tokens.

    An expert without parameters, which nothing can change, processes no token here.

    Args:
        net: the model.
        block: the module that runs the experts.
        call: what it was called with.
        layer: the router's properties.
        num_images: B.
        during: gives a context for each run of the block.
    """
    module = net.get_submodule(block.name)
    was_training = [inner for inner in module.modules() if inner.training]
    module.eval()
    try:
        with torch.inference_mode(), random_numbers_kept(call.device):
            with during():
                before = _tokens(_run(module, call, {}), layer, num_images)
            if before is None:
                return None
            work, copies = [], dict[str, Tensor]()
            for names in block.parameters:
                with during(), _exchange_parameters(module, names, copies) as changed:
                    after = _tokens(_run(module, call, changed), layer, num_images)
                assert after is not None
                work.append((after != before).any(-1))
            return torch.stack(work, -1)
    finally:
        for inner in was_training:
            inner.training = True


def random_numbers_kept(device: torch.device) -> AbstractContextManager[None]:
    """Leave the random numbers of the CPU and of a device as they are found."""
    restoring: AbstractContextManager[None] = torch.random.fork_rng([device] if device.type == "cuda" else [])
    return restoring


def scaled(call: BlockCall, factor: float) -> BlockCall:
    """Return a call with inputs ``factor`` times as large."""
    arguments = tuple(
        value * factor if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in call.arguments
    )
    return replace(call, arguments=arguments)


def is_mixed(work: Tensor, choice: Tensor) -> bool:
    """Whether a block mixes the tokens behind its experts: each changes all tokens of an image, or none.

    Args:
        work: ``(B, T, E)`` which tokens an expert changes.
        choice: ``(B, T, E)`` which tokens chose it.
    """
    return bool((work == work[:, :1]).all()) and torch.equal(work.any(1), choice.any(1))


def _run(module: nn.Module, call: BlockCall, changed: Mapping[str, Tensor]) -> Any:
    """Run a block again as it was run, with some parameters exchanged; its buffers stay as they are."""
    torch.set_rng_state(call.random_state)
    if call.device_state is not None:
        torch.cuda.set_rng_state(call.device_state, call.device)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return functional_call(
        module, buffers | dict(changed), _copied(call.arguments), _copied(call.keywords), strict=False
    )


@contextmanager
def _exchange_parameters(
    module: nn.Module, names: Sequence[tuple[str, int | None]], copies: dict[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Give an expert's parameters, far from what they are, by their names.

    Args:
        module: that holds them.
        names: of the expert's parameters, with its index where experts share a tensor.
        copies: of shared tensors, which are as they were again afterwards.
    """
    changed: dict[str, Tensor] = {}
    for name, index in names:
        parameter = module.get_parameter(name).detach()
        if not parameter.is_floating_point():
            continue
        if index is None:
            changed[name] = _far_from(parameter)
        else:
            changed[name] = copies.setdefault(name, parameter.clone())
            changed[name][index] = _far_from(parameter[index])
    yield changed
    for name, index in names:
        if index is not None and name in changed:
            copies[name][index] = module.get_parameter(name).detach()[index]


def _far_from(parameter: Tensor) -> Tensor:
    """Return other values: of the other sign, much larger, and not all zero where the parameter is."""
    ramp = torch.linspace(-1, 1, parameter.numel(), device=parameter.device).reshape(parameter.shape)
    return (_LEAST_MOVE * ramp - parameter.float()).mul(_MOVE).to(parameter.dtype)


def _tokens(output: Any, layer: HookedLayer, num_images: int) -> Tensor | None:
    """Return the output of each token ``(B, T, D)`` of a block; None where it has none."""
    for value in tensors_of(output):
        if not value.is_floating_point():
            continue
        if layer.num_tokens == 1 and value.ndim > 1 and len(value) == num_images:
            return value.reshape(num_images, 1, -1)
        is_map = value.ndim == 4 and len(value) == num_images and value[0, 0].numel() == layer.num_tokens
        if is_map and value.shape[1] != value.shape[-1]:
            return value.flatten(2).transpose(1, 2)
        try:
            tokens = layer.by_image(value, num_images)
        except UserError:
            continue
        if tokens.shape[1] == layer.num_tokens:
            return tokens
    return None


def _copied(value: Any) -> Any:
    """Return what a module is called with, its tensors copied."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(map(_copied, value))
    return value


def _device_state(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None
