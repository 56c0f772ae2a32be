"""Which part of a model each of its parameters is of: routers, experts, attention, the rest.

Routers and experts are what whoever traces the model knows as such; where experts are not known as modules, and for
attention, the path in the model says it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

PARTS = ("router", "experts", "attention", "rest")
_EXPERTS = re.compile(r"experts?|local_experts")
_ATTENTION = re.compile(r"(.*_)?(attn|attention)")


@dataclass(frozen=True)
class Weight:
    """A parameter of a model.

    Attributes:
        part: one of ``PARTS``.
        parameter: the parameter itself.
        inputs: its axis that is multiplied with what comes in, from the end.
    """

    part: str
    parameter: nn.Parameter
    inputs: int = -1


def weights_of(
    net: nn.Module,
    *,
    routers: Collection[nn.Module],
    experts: Collection[nn.Module] = (),
    is_transposed: Callable[[nn.Module], bool] = lambda module: getattr(module, "is_transposed", False),
) -> list[Weight]:
    """Return the parameters of a model that hold numbers with a fraction, each once.

    Args:
        net: the model.
        routers: modules that choose experts.
        experts: modules that hold experts; where a router is inside of one it is a router still.
        is_transposed: whether a module's stacked parameters have their inputs before their outputs.
    """
    inside = {
        id(parameter): part
        for part, modules in (("experts", experts), ("router", routers))
        for module in modules
        for parameter in module.parameters()
    }
    return [
        Weight(
            inside.get(id(parameter)) or _by_name(path),
            parameter,
            -2 if parameter.ndim == 3 and is_transposed(module) else -1,
        )
        for path, module, parameter in _parameters(net)
        if parameter.is_floating_point()
    ]


def _parameters(net: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Yield each parameter once, with its path and the module that has it."""
    seen: set[int] = set()
    for path, module in net.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}", module, parameter


def _by_name(path: str) -> str:
    """Return the part that a path like ``model.layers.3.self_attn.q_proj.weight`` names."""
    names = path.split(".")
    if any(_EXPERTS.fullmatch(name) for name in names):
        return "experts"
    return "attention" if any(_ATTENTION.fullmatch(name) for name in names) else "rest"
