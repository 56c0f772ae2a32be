"""The noise floor: how far the clean inputs match themselves where nothing changes but the arithmetic."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.probes.engine.blank_passes import once
from moeprobe.results.tables import FLOORS
from moeprobe.routing.capabilities import Traceable
from moeprobe.routing.other_dtype import in_dtype, other_dtype_name
from moeprobe.routing.pass_precision import in_float32, precision_of
from moeprobe.routing.record import RoutingTrace, join_batches
from moeprobe.runtime.device import FLOAT32

AGAIN, OTHER_BATCH, OTHER_DTYPE = FLOORS


def repeats(
    checkpoint: Checkpoint,
    pixels: Any,
    *,
    layers: Sequence[str] | None,
    device: torch.device,
    other_dtype: bool = True,
) -> Iterator[tuple[str, RoutingTrace]]:
    """Yield the name and the routing of each further pass over the same clean images ``(B, 3, S, S)``, or texts.

    Args:
        checkpoint: the model.
        pixels: its inputs.
        layers: of which the routing is wanted; None = all.
        device: where it runs.
        other_dtype: whether the model runs in another format than float32.

    Raises:
        UserError: the model does not run in the other format.
    """
    model = checkpoint.model
    yield AGAIN, model.trace(pixels, layers=layers, logits=False)[1]
    half = len(pixels) // 2 // model.group_images * model.group_images
    if half:
        parts = [model.trace(part, layers=layers, logits=False)[1] for part in (pixels[:half], pixels[half:])]
        yield OTHER_BATCH, join_batches(parts)
    if not other_dtype:
        return
    try:
        yield OTHER_DTYPE, _in_other_dtype(model, pixels, layers, device)
    except UserError as error:
        raise UserError(
            f"{_not_measured(checkpoint, device)}: {str(error).rstrip('.')}. Leave the noise floor out: "
            f"{option('floor_images', 0)}."
        ) from error


def _in_other_dtype(
    model: Traceable, inputs: Any, layers: Sequence[str] | None, device: torch.device
) -> RoutingTrace:
    """Return the routing of a pass in another format: of passes in float32 the narrower one, else float32."""
    if precision_of(model) != FLOAT32:
        return in_float32(model).trace(inputs, layers=layers, logits=False)[1]
    with in_dtype(device):
        return model.trace(inputs, layers=layers, logits=False)[1]


def refusals(checkpoints: Sequence[Checkpoint], device: torch.device) -> dict[str, str]:
    """Return why checkpoints do not run in another format than float32, in sentences by their names.

    Their code may mix tensors of two formats, which no product takes.
    """
    reasons = {checkpoint.name: (checkpoint, _refusal(checkpoint, device)) for checkpoint in checkpoints}
    return {
        name: f"{_not_measured(checkpoint, device)}: {reason}"
        for name, (checkpoint, reason) in reasons.items()
        if reason
    }


def _refusal(checkpoint: Checkpoint, device: torch.device) -> str:
    """Return why a checkpoint does not run in another format; empty where it does."""

    def run() -> str:
        # Spread over devices, a model need not be where the others are.
        model_device = getattr(checkpoint.model, "device", None) or device
        try:
            _in_other_dtype(checkpoint.model, checkpoint.framing.blank(), None, model_device)
        except UserError as error:
            return str(error).rstrip(".")
        return ""

    return once(checkpoint, "refusal of another format", run)


def _not_measured(checkpoint: Checkpoint, device: torch.device) -> str:
    return f"the noise floor of {checkpoint.name} in {other_dtype_name(device)}"


def dtype_name(device: torch.device, precision: str) -> str:
    """Return which format the other one is, of passes in a precision."""
    return other_dtype_name(device) if precision == FLOAT32 else FLOAT32
