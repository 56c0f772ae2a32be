"""Which part of a model each of its parameters is of: routers, experts, attention, the rest.

Routers and experts are what whoever traces the model knows as such; where experts are not known as modules, and for
attention, the path in the model says it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprobe.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

PARTS = ("router", "experts", "attention", "rest")
_EXPERTS = re.compile(r"experts?|local_experts")
# Stacked biases, class and mask tokens, position embeddings: ``gate_up_proj_bias``, ``cls_token``, ``pos_embed``.
_VECTORS = re.compile(r"(.*_)?bias(es)?|(.*_)?(token|pos_emb(ed)?|position_embeddings?|pos_embedding)")
_ATTENTION = re.compile(r"(.*_)?(attn|attention)")


@dataclass(frozen=True)
class Weight:
    """A parameter of a model.

    Attributes:
        part: one of ``PARTS``.
        parameter: the parameter itself.
        inputs: its axis that is multiplied with the input, from the end; None of vectors, which are added.
    """

    part: str
    parameter: nn.Parameter
    inputs: int | None = -1


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

    Raises:
        UserError: a parameter is quantized, so its numbers are no weights.
    """
    for path, _, parameter in _parameters(net):
        if is_quantized(parameter):
            raise UserError(
                f"{path} is quantized in memory ({type(parameter).__name__}, {parameter.dtype}), so its weights cannot "
                "be changed; open the model dequantized."
            )
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
            _inputs(path.rpartition(".")[2], parameter, is_transposed=is_transposed(module)),
        )
        for path, module, parameter in _parameters(net)
        if parameter.is_floating_point()
    ]


def is_quantized(parameter: Tensor) -> bool:
    """Whether a parameter holds something else than plain numbers: packed or scaled ones, or a package's own class."""
    is_of_package = type(parameter).__module__.partition(".")[0] in ("bitsandbytes", "torchao")
    return is_of_package or (parameter.element_size() == 1 and not str(parameter.dtype).endswith("bool"))


def _inputs(name: str, parameter: nn.Parameter, *, is_transposed: bool) -> int | None:
    """Return the axis of the inputs; None of vectors, also where they are stacked or have an axis for the batch."""
    if parameter.ndim < 2 or _VECTORS.fullmatch(name):
        return None
    return -2 if parameter.ndim == 3 and is_transposed else -1


def _parameters(net: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Yield each parameter once, with its path and the module that has it."""
    ids: set[int] = set()
    for path, module in net.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in ids:
                ids.add(id(parameter))
                yield f"{path}.{name}", module, parameter


def _by_name(path: str) -> str:
    """Return the part that a path like ``model.layers.3.self_attn.q_proj.weight`` names."""
    names = path.split(".")
    if any(_EXPERTS.fullmatch(name) for name in names):
        return "experts"
    return "attention" if any(_ATTENTION.fullmatch(name) for name in names) else "rest"
