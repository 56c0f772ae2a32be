"""The noise floor: how far the clean image matches itself where nothing changes but the arithmetic.

Axes: B images.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from moeprobe.routing import LayerRouting, RoutingTrace, Traceable
from moeprobe.tables import FLOORS

AGAIN, OTHER_BATCH, OTHER_DTYPE = FLOORS
_DTYPES = {"cpu": torch.bfloat16, "cuda": torch.bfloat16, "mps": torch.float16}
_PER_IMAGE = ("gates", "scores", "selected", "processed", "valid", "slot")


def repeats(
    model: Traceable, pixels: Any, *, layers: Sequence[str] | None, device: torch.device
) -> Iterator[tuple[str, RoutingTrace]]:
    """Yield the name and the routing of each further pass over the same clean images ``(B, 3, S, S)``, or texts."""
    yield AGAIN, model.trace(pixels, layers=layers, logits=False)[1]
    half = len(pixels) // 2 // model.group_images * model.group_images
    if half:
        parts = [model.trace(part, layers=layers, logits=False)[1] for part in (pixels[:half], pixels[half:])]
        yield OTHER_BATCH, _joined(parts)
    with torch.autocast(device.type, dtype=_DTYPES[device.type]):
        yield OTHER_DTYPE, model.trace(pixels, layers=layers, logits=False)[1]


def dtype_name(device: torch.device) -> str:
    """Return which dtype the other one is."""
    return str(_DTYPES[device.type]).removeprefix("torch.")


def _joined(parts: Sequence[RoutingTrace]) -> RoutingTrace:
    layers = {}
    for name, first in parts[0].layers.items():
        both = [part.layers[name] for part in parts]
        joined = {field: _cat([getattr(layer, field) for layer in both]) for field in _PER_IMAGE}
        layers[name] = LayerRouting(**(vars(first) | joined))
    return RoutingTrace(layers)


def _cat(values: Sequence[Tensor | None]) -> Tensor | None:
    """Return the images of all parts; None where a routing has no such thing."""
    return None if values[0] is None else torch.cat([value for value in values if value is not None])
