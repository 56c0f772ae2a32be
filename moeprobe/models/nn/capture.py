"""Read what the routers see and decide, or make them repeat choices, from outside: the model has no analysis argument.

Axes: B images, T tokens, G groups, S tokens per group, E experts, K choices.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.plans import DispatchPlan, plan_choices
from moeprobe.models.nn.routers.base import Decision, Router


class _Stop(Exception):  # noqa: N818  (a signal, not an error)
    """The last layer asked for has been routed; the rest of the forward is not needed."""


def moe_layers(model: nn.Module) -> dict[str, MoeLayer]:
    """Return the MoE layers of ``model`` in forward order, named by the block they sit in (``"blocks.3"``)."""
    return {
        name.rpartition(".")[0]: module
        for name, module in model.named_modules()
        if isinstance(module, MoeLayer)
    }


@contextmanager
def capture(model: nn.Module, *, stop_after: str | None = None) -> Iterator[dict[str, Decision]]:
    """Collect each router's decision of the forward passes inside the context, by block name.

    The first firing counts, so use one context per forward. With ``stop_after`` the context ends at that block's
    router: code inside it after the call of the model does not run.
    """
    decisions: dict[str, Decision] = {}

    def reader(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, decision: Decision) -> None:
            # The first firing counts: a model that is run again within the context must not overwrite it.
            decisions.setdefault(name, decision)
            if name == stop_after:
                raise _Stop

        return hook

    handles = [layer.router.register_forward_hook(reader(name)) for name, layer in moe_layers(model).items()]
    with _remove_at_end(handles):
        yield decisions


@contextmanager
def capture_inputs(model: nn.Module, *, stop_after: str | None = None) -> Iterator[dict[str, Tensor]]:
    """Collect the tokens ``(B, T, D)`` that reach each MoE layer, by block name; otherwise as ``capture``."""
    inputs: dict[str, Tensor] = {}

    def reader(name: str) -> Any:
        def hook(_module: nn.Module, arguments: tuple[Tensor]) -> None:
            inputs.setdefault(name, arguments[0])
            if name == stop_after:
                raise _Stop

        return hook

    handles = [layer.register_forward_pre_hook(reader(name)) for name, layer in moe_layers(model).items()]
    with _remove_at_end(handles):
        yield inputs


@contextmanager
def capture_trunks(model: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Collect what enters the blocks of some MoE layers, and the layers' outputs ``(B, T, D)``, by block name.

    The context ends at the output of the last of ``layers``.
    """
    trunks: dict[str, tuple[Tensor, Tensor]] = {}
    hidden: dict[str, Tensor] = {}

    def enter(name: str) -> Any:
        def hook(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            hidden[name] = arguments[0]

        return hook

    def leave(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            trunks[name] = hidden[name], output
            if name == layers[-1]:
                raise _Stop

        return hook

    moe = moe_layers(model)
    handles = [model.get_submodule(name).register_forward_pre_hook(enter(name)) for name in layers]
    handles += [moe[name].register_forward_hook(leave(name)) for name in layers]
    with _remove_at_end(handles):
        yield trunks


@contextmanager
def _remove_at_end(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    """Remove the hooks at the end, which may be a ``_Stop``."""
    try:
        yield
    except _Stop:
        pass
    finally:
        for handle in handles:
            handle.remove()


# Switch experts of a trained model off, by its parameters: nothing is left on the model that every pass would ask.
#
# After C. Teo, "Exploring Mixture of Experts and Sparse Vision Transformers", section 4.3. Routers decide
# as before, and nothing is routed elsewhere.


@torch.no_grad()
def switch_experts(
    model: nn.Module, *, off: bool = False, without: int | None = None, only: int | None = None
) -> None:
    """Change the experts of all MoE layers, in place.

    Args:
        model: with MoE layers of two-layer perceptrons.
        off: no expert adds anything; only the residual of a block remains.
        without: this expert adds nothing.
        only: every expert is a copy of this one, so that it gets the weights of all that a token has chosen.
    """
    for layer in moe_layers(model).values():
        experts: Any = layer.experts
        if only is not None:
            for parameter in experts.parameters():
                parameter.copy_(parameter[only].clone().expand_as(parameter))
        silent = slice(None) if off else without
        if silent is not None:
            # Without a second layer an expert adds nothing, biases included.
            for parameter in experts.fc2.parameters():
                parameter[silent] = 0


@dataclass(frozen=True)
class Choices:
    """What the tokens of one layer are to choose.

    Attributes:
        selected: ``(B, T, K)`` experts, best first, -1 = none.
        processed: ``(B, T, K)`` bool, which of them fit the capacity.
        gates: ``(B, T, E)`` weights to use; None = what the router gives to its present input.
    """

    selected: Tensor
    processed: Tensor
    gates: Tensor | None = None


@contextmanager
def replaying(model: nn.Module, choices: Mapping[str, Choices]) -> Iterator[None]:
    """Let the layers named by block (``"blocks.3"``) repeat these choices; the other layers choose as ever."""
    layers = moe_layers(model)

    def repeating(layer_choices: Choices) -> Any:
        def hook(router: Router, _inputs: Any, decision: Decision) -> Decision:
            return _repeat(decision, layer_choices, renormalise=router.renormalise)

        return hook

    handles = [
        layers[name].router.register_forward_hook(repeating(layer_choices))
        for name, layer_choices in choices.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _repeat(decision: Decision, choices: Choices, *, renormalise: bool) -> Decision:
    groups = decision.gates.shape[:2]
    selected, processed = (side.reshape(*groups, -1) for side in (choices.selected.long(), choices.processed))
    gates = decision.gates if choices.gates is None else choices.gates.to(decision.gates.dtype)
    # Gates come by image, and groups may hold several images.
    gates = gates.reshape(decision.gates.shape)
    assert isinstance(decision.plan, DispatchPlan), "a soft router has no choices to repeat"
    plan = plan_choices(gates, selected, processed, capacity=decision.plan.capacity, renormalise=renormalise)
    return replace(decision, gates=gates, selected=selected, processed=processed, plan=plan)
