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

from moeprobe.adapters.hooks.layer import HookedLayer
from moeprobe.adapters.hooks.watch import tensors_of
from moeprobe.errors import UserError
from moeprobe.runtime.foreign_errors import running
from moeprobe.runtime.torch_state import RandomStates, buffers_kept, random_numbers_kept, values_exchanged

# An expert's parameters become so many times as large, of the other sign, so that a token that gives the expert next to
# no weight is seen; float16 would overflow. What is zero is moved by a hundredth of it.
_MOVE, _MOVE_HALF, _LEAST_MOVE = 1e4, 30.0, 0.01
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
    """What a block was called with, on which device, and the state of the random numbers then."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    device: torch.device
    random_states: RandomStates


def find_block(net: nn.Module, router: str, num_experts: int) -> ExpertBlock | None:
    """Return the nearest module around a router that holds E experts beside it; None where there is none.

    Experts are the E members of a list of modules, or the slices of parameters ``(E, ., .)``.
    """
    for path, inside in _around(router):
        parameters = _experts(net.get_submodule(path), inside, num_experts)
        if parameters:
            return ExpertBlock(path, parameters)
    return None


def _around(router: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the modules around a router, the nearest first, and the router's name below each."""
    path = router
    while path:
        path = path.rpartition(".")[0]
        yield path, router[len(path) + 1 :] if path else router


def _experts(
    block: nn.Module, router: str, num_experts: int
) -> tuple[tuple[tuple[str, int | None], ...], ...]:
    """Return the parameters of each expert of a block; empty where it has no experts."""
    listed: list[list[tuple[str, int | None]]] = [[] for _ in range(num_experts)]
    lists: list[str] = []
    for name, module in block.named_modules():
        # Members of a listed module are parts of an expert, not experts.
        is_inner = any(name.startswith(f"{outer}.") for outer in lists)
        if not name or is_inner or router.startswith(f"{name}.") or not _is_list_of(module, num_experts):
            continue
        lists.append(name)
        for number, (child, expert) in enumerate(module._modules.items()):
            if expert is not None:
                of_expert = [(f"{name}.{child}.{key}", None) for key, _ in expert.named_parameters()]
                listed[number] += of_expert
    # A list of modules is surer than a parameter that happens to have E rows.
    if any(listed):
        return tuple(map(tuple, listed))
    stacked = [
        name
        for name, parameter in block.named_parameters()
        if parameter.ndim >= _STACKED_AXES
        and len(parameter) == num_experts
        # The router may hold parameters for each expert too.
        and not name.startswith(f"{router}.")
    ]
    if not stacked:
        return ()
    return tuple(tuple((name, number) for name in stacked) for number in range(num_experts))


def _is_list_of(module: nn.Module, num_experts: int) -> bool:
    """Whether a module may be a list of so many experts: most hold a matrix, which norms do not."""
    if not isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict) or len(module) != num_experts:
        return False
    children = [child for child in module._modules.values() if child is not None]
    if isinstance(module, nn.Sequential) and len({type(child) for child in children}) > 1:
        return False  # layers of one expert
    with_matrix = [child for child in children if any(value.ndim > 1 for value in child.parameters())]
    return 2 * len(with_matrix) >= num_experts


def count_experts(net: nn.Module, router: str) -> int | None:
    """Return how many members the nearest list of modules around a router has; None where there is none."""
    for path, inside in _around(router):
        for name, module in net.get_submodule(path).named_modules():
            if isinstance(module, nn.ModuleList | nn.ModuleDict) and not inside.startswith(f"{name}."):
                return len(module)
    return None


def changeable(block: ExpertBlock, device: torch.device) -> Tensor:
    """Return which experts ``(E,)`` have parameters, so that a change of them shows."""
    return torch.tensor([bool(names) for names in block.parameters], device=device)


def mixes_tokens(
    net: nn.Module, block: ExpertBlock, call: BlockCall, layer: HookedLayer, num_images: int
) -> bool:
    """Whether a change of one token's input changes other tokens of a block; so it is taken where nobody can tell."""
    module = net.get_submodule(block.name)
    # The first argument is taken for the tokens; copied, since it is changed below.
    arguments = _copy_tensors(call.arguments)
    tokens = None if not arguments else _tokens(arguments[0], layer, num_images)
    # A view of the copy is needed, or the change would not reach the module.
    if tokens is None or tokens.data_ptr() != arguments[0].data_ptr():
        return True
    with torch.inference_mode(), random_numbers_kept([call.device]):
        before = _tokens(_run(module, call), layer, num_images)
        tokens[:, 0] += 1
        after = _tokens(_run(module, replace(call, arguments=arguments)), layer, num_images)
    assert before is not None
    assert after is not None
    # Only the first token was changed: any other change is mixing.
    return bool((before != after)[:, 1:].any())


@contextmanager
def listening(net: nn.Module, blocks: Mapping[str, ExpertBlock]) -> Iterator[dict[str, list[BlockCall]]]:
    """Collect what the blocks of layers are called with, by layer."""
    calls: dict[str, list[BlockCall]] = {layer: [] for layer in blocks}

    def hook(layer: str) -> Any:
        def keep(_module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            # Copied: what comes after may write into them.
            copied = _copy_tensors(arguments), _copy_tensors(keywords)
            device = next((value.device for value in tensors_of(copied)), torch.device("cpu"))
            calls[layer].append(BlockCall(*copied, device, RandomStates.now([device])))

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

    An expert without parameters, which nothing can change, counts as processing each token: see ``changeable``.

    Args:
        net: the model.
        block: the module that runs the experts.
        call: what it was called with.
        layer: the router's properties.
        num_images: B.
        during: gives a context for each run of the block.

    Raises:
        UserError: the block cannot be run by itself.
    """
    module = net.get_submodule(block.name)
    was_training = [inner for inner in module.modules() if inner.training]
    # Dropout would make every output differ, and so every expert seem to work.
    module.eval()
    try:
        with torch.inference_mode(), random_numbers_kept([call.device]):
            with during():
                before = _tokens(_run(module, call), layer, num_images)
            if before is None:
                return None
            work = []
            for names in block.parameters:
                if not names:
                    work.append(torch.ones_like(before[..., 0], dtype=torch.bool))
                    continue
                with during(), _expert_moved(module, names):
                    after = _tokens(_run(module, call), layer, num_images)
                assert after is not None
                work.append((after != before).any(-1))
            return torch.stack(work, -1)
    finally:
        for inner in was_training:
            inner.training = True


def is_mixed(work: Tensor, choice: Tensor) -> bool:
    """Whether a block mixes the tokens behind its experts: each changes all tokens of an image, or none.

    Args:
        work: ``(B, T, E)`` which tokens an expert changes.
        choice: ``(B, T, E)`` which tokens chose it.
    """
    return bool((work == work[:, :1]).all()) and torch.equal(work.any(1), choice.any(1))


def _run(module: nn.Module, call: BlockCall) -> Any:
    """Run a block again as it was run; its buffers are left as they are found.

    Raises:
        UserError: it cannot be run by itself.
    """
    # A router that draws noise must draw the same noise again.
    call.random_states.restore()
    with buffers_kept(module), running("The model", doing="where a layer was run by itself"):
        return module(*_copy_tensors(call.arguments), **_copy_tensors(call.keywords))


def _expert_moved(module: nn.Module, names: Sequence[tuple[str, int | None]]) -> AbstractContextManager[None]:
    """Move an expert's parameters, by their names below a module, far from what they are, and back."""
    parameters = [(module.get_parameter(name).detach(), index) for name, index in names]
    return values_exchanged(
        [
            value if index is None else value[index]
            for value, index in parameters
            if value.is_floating_point()
        ],
        _far_from,
    )


def _far_from(parameter: Tensor) -> Tensor:
    """Return other values: of the other sign, much larger, and not all zero where the parameter is."""
    move = _MOVE_HALF if parameter.dtype == torch.float16 else _MOVE
    # A ramp, since a parameter of zeros has to become one that differs from place to place.
    ramp = torch.linspace(-1, 1, parameter.numel(), device=parameter.device).reshape(parameter.shape)
    return (_LEAST_MOVE * ramp - parameter.float()).mul(move).to(parameter.dtype)


def _tokens(output: Any, layer: HookedLayer, num_images: int) -> Tensor | None:
    """Return what a block gives of each token ``(B, T, D)``, all its tensors side by side; None where it gives none."""
    values = [
        tokens
        for value in tensors_of(output)
        if value.is_floating_point() and (tokens := _by_token(value, layer, num_images)) is not None
    ]
    if len(values) > 1:
        return torch.cat([value.float() for value in values], -1)
    return values[0] if values else None


def _by_token(value: Tensor, layer: HookedLayer, num_images: int) -> Tensor | None:
    """Return a tensor as ``(B, T, D)``; None where it has no tokens of the layer."""
    # A router of whole images: the block's output belongs to images.
    if layer.num_tokens == 1 and value.ndim > 1 and len(value) == num_images:
        return value.reshape(num_images, 1, -1)
    is_map = value.ndim == 4 and len(value) == num_images and value[0, 0].numel() == layer.num_tokens
    # A map (B, D, H, W) of a convolution: channels come before places.
    if is_map and value.shape[1] != value.shape[-1]:
        return value.flatten(2).transpose(1, 2)
    try:
        tokens = layer.by_image(value, num_images)
    except UserError:
        return None
    return tokens if tokens.shape[1] == layer.num_tokens else None


def _copy_tensors(value: Any) -> Any:
    """Return what a module is called with, its tensors copied."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _copy_tensors(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(map(_copy_tensors, value))
    return value
