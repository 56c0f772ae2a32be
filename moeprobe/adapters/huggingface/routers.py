"""The routers of a model of ``transformers``: found by class, watched while they fire, and what they are called.

Nothing here knows a family of models by name. The library says of which class ``router_logits`` are recorded, and which
of its outputs they are. Where that is a block around several routers, they are found beside their experts in it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import PassEnd
from moeprobe.adapters.huggingface import placing
from moeprobe.adapters.huggingface.outputs import Fired, OutputReader
from moeprobe.errors import UserError, option
from moeprobe.runtime.foreign_errors import running

# A capacity that no batch reaches.
_NO_LIMIT = 2**30


@dataclass
class RouterLayer:
    """One router and how it is read."""

    module: nn.Module
    experts: nn.Module | None
    logits_at: int
    reader: OutputReader | None = None
    fired: list[Fired] = field(default_factory=list)

    def describe(self, name: str) -> dict[str, Any]:
        """Return the facts about a router that is read."""
        reader = self.reader
        assert reader is not None
        return {
            "layer": name,
            "router": type(self.module).__name__,
            "num_experts": reader.num_experts,
            "top_k": reader.top_k,
            "gates": reader.gate,
            "biased_choice": reader.bias is not None,
            "constant_weight": reader.constant_weight,
            "expert_parameters": None if self.experts is None else count_parameters(self.experts),
        }


def count_parameters(module: nn.Module) -> int:
    """Return how many numbers the parameters of a module hold."""
    return sum(parameter.numel() for parameter in module.parameters())


def watch(layer: RouterLayer, stack: ExitStack, *, stop: bool) -> None:
    """Keep what a router gives out, and what its experts get where that says what it chose."""
    wait = layer.experts is not None and (layer.reader is None or layer.reader.form == "experts")

    def keep(router: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        inputs = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, Tensor)]
        layer.fired.append(Fired(outputs, tuple(inputs)))
        if stop and not wait:
            raise PassEnd

    def keep_choice(experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if layer.fired:
            last = layer.fired.pop()
            layer.fired.append(Fired(last.outputs, last.inputs, (*args, *kwargs.values())))
        if stop:
            raise PassEnd

    stack.callback(layer.module.register_forward_hook(keep, with_kwargs=True).remove)
    if wait:
        assert layer.experts is not None
        stack.callback(layer.experts.register_forward_pre_hook(keep_choice, with_kwargs=True).remove)


@dataclass(frozen=True)
class RouterCall:
    """What a router was called with: the tokens come first, in whatever shape."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tokens(self) -> Tensor:
        """The tokens."""
        tokens: Tensor = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return tokens

    def repeat(self, router: nn.Module, tokens: Tensor) -> Fired:
        """Call a router once more, with other tokens in the place of its own."""
        tokens = tokens.reshape(self.tokens.shape).to(self.tokens)
        first = next(iter(self.kwargs), "")
        output = (
            router(tokens, *self.args[1:], **self.kwargs)
            if self.args
            else router(**self.kwargs | {first: tokens})
        )
        return Fired(output if isinstance(output, tuple) else (output,))


def scores_for(name: str, layer: RouterLayer, call: RouterCall, tokens: Tensor) -> Tensor:
    """Return the scores ``(N, E)`` by which the router of the layer ``name`` ranks experts for other tokens."""
    assert layer.reader is not None
    with torch.inference_mode(), placing.in_reach(layer.module), running(f"The router of {name}"):
        return layer.reader.preference(call.repeat(layer.module, tokens))


@contextmanager
def calls_of(layers: Mapping[str, RouterLayer], names: Collection[str]) -> Iterator[dict[str, RouterCall]]:
    """Yield what the named routers are called with, filled in a forward pass inside of the block."""
    calls: dict[str, RouterCall] = {}

    def keep(name: str, router: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[name] = RouterCall(args, kwargs)

    with ExitStack() as stack:
        for name in names:
            hook = layers[name].module.register_forward_pre_hook(partial(keep, name), with_kwargs=True)
            stack.callback(hook.remove)
        yield calls


def find_routers(model: nn.Module) -> dict[str, RouterLayer]:
    """Return the routers by their paths: instances of the classes whose logits the library records."""
    recorders: dict[type, tuple[int, str | None]] = {}
    for module in model.modules():
        declared = (getattr(type(module), "_can_record_outputs", None) or {}).get("router_logits", [])
        for recorder in declared if isinstance(declared, list) else [declared]:
            target: Any = getattr(recorder, "target_class", recorder)
            recorders[target] = (getattr(recorder, "index", 0), getattr(recorder, "layer_name", None))
    routers = {
        path: RouterLayer(module, _sibling(model, path), recorders[type(module)][0])
        for path, module in model.named_modules()
        if type(module) in recorders and (recorders[type(module)][1] or "") in path
    }
    # A block that gives logits alone, as one for texts and pictures: the routers are beside the experts in it.
    for block in [path for path, layer in routers.items() if layer.experts is None]:
        for path in _routers_in(model, block):
            routers[path] = RouterLayer(model.get_submodule(path), _sibling(model, path), 0)
    # Where one holds another, the inner one is the router itself.
    inner = [path for path in routers if not any(candidate.startswith(f"{path}.") for candidate in routers)]
    return {path: routers[path] for path in inner}


def _sibling(model: nn.Module, path: str) -> nn.Module | None:
    """Return the experts next to a router, None if there are none by that name."""
    parent = model.get_submodule(path.rpartition(".")[0])
    experts = getattr(parent, "experts", None)
    return experts if isinstance(experts, nn.Module) else None


def _routers_in(model: nn.Module, block: str) -> list[str]:
    """Return the routers beside experts inside of a block, by what the library calls them."""
    holders = [path for path, _ in model.get_submodule(block).named_modules(prefix=block) if path != block]
    return [
        f"{path}.{name}"
        for path in holders
        for name in ("gate", "router")
        if isinstance(getattr(model.get_submodule(path), "experts", None), nn.Module)
        and isinstance(getattr(model.get_submodule(path), name, None), nn.Module)
    ]


def short_names(paths: Sequence[str]) -> list[str]:
    """Return what layers are called: their list of blocks and the number in it; the whole path where two share it."""
    names = [_block(path) for path in paths]
    return [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


def _block(path: str) -> str:
    """``model.layers.3.mlp.gate`` -> ``layers.3``."""
    parts = path.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return path if not number else ".".join(parts[number - 1 : number + 1])


def blocks_without(model: nn.Module, routers: Sequence[nn.Module]) -> tuple[str, ...]:
    """Return the blocks, of the lists of blocks that hold the routers, that hold none."""
    ids = set(map(id, routers))
    lists = {
        path.rpartition(".")[0]: None
        for path, module in model.named_modules()
        if path.rpartition(".")[2].isdigit() and any(id(inner) in ids for inner in module.modules())
    }
    outer = [path for path in lists if not any(path.startswith(f"{candidate}.") for candidate in lists)]
    return tuple(
        f"{path.rpartition('.')[2]}.{number}"
        for path in outer
        for number, block in model.get_submodule(path).named_children()
        if not any(id(inner) in ids for inner in block.modules())
    )


def set_capacity(model: nn.Module, *, trained: bool) -> bool:
    """Lift the capacity of routers that have one, or leave it; returns whether there is a limit then.

    Raises:
        UserError: the limit is to stay, and depends on how many texts a batch holds.
    """
    limited = [module for module in model.modules() if hasattr(module, "expert_capacity")]
    for module in limited:
        # A share of the batch's tokens, where it is positive, overrides the fixed number.
        share = getattr(module, "moe_eval_capacity_token_fraction", None)
        if trained and share is not None:
            raise UserError(
                "its capacity is one for all texts of a batch together; omit "
                f"{option('trained_capacity', True, '--capacity trained')}."
            )
        if not trained:
            module.expert_capacity = _NO_LIMIT  # type: ignore[assignment]
            if share is not None:
                module.moe_eval_capacity_token_fraction = -1.0  # type: ignore[assignment]
    return trained and bool(limited)
