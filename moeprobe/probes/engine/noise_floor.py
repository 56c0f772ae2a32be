"""The noise floor: how far the clean image matches itself where nothing changes but the arithmetic.

Axes: B images.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from moeprobe.results.tables import FLOORS
from moeprobe.routing.capabilities import Traceable
from moeprobe.routing.record import RoutingTrace, joined

AGAIN, OTHER_BATCH, OTHER_DTYPE = FLOORS
_DTYPES = {"cpu": torch.bfloat16, "cuda": torch.bfloat16, "mps": torch.float16}


def repeats(
    model: Traceable, pixels: Any, *, layers: Sequence[str] | None, device: torch.device
) -> Iterator[tuple[str, RoutingTrace]]:
    """Yield the name and the routing of each further pass over the same clean images ``(B, 3, S, S)``, or texts."""
    yield AGAIN, model.trace(pixels, layers=layers, logits=False)[1]
    half = len(pixels) // 2 // model.group_images * model.group_images
    if half:
        parts = [model.trace(part, layers=layers, logits=False)[1] for part in (pixels[:half], pixels[half:])]
        yield OTHER_BATCH, joined(parts)
    with torch.autocast(device.type, dtype=_DTYPES[device.type]):
        yield OTHER_DTYPE, model.trace(pixels, layers=layers, logits=False)[1]


def dtype_name(device: torch.device) -> str:
    """Return which dtype the other one is."""
    return str(_DTYPES[device.type]).removeprefix("torch.")
