"""Make routers repeat choices that were made elsewhere, from outside: the model has no analysis argument.

Axes: B images, T tokens, G groups, S tokens per group, E experts, K choices.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.plans import DispatchPlan, plan_choices
from moeprobe.models.nn.routers.base import Decision, Router


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
    gates = gates.reshape(decision.gates.shape)
    assert isinstance(decision.plan, DispatchPlan), "a soft router has no choices to repeat"
    plan = plan_choices(gates, selected, processed, capacity=decision.plan.capacity, renormalise=renormalise)
    return replace(decision, gates=gates, selected=selected, processed=processed, plan=plan)
