"""The device that a name means."""

import torch

from moeprobe.errors import UserError
from moeprobe.runtime.keywords import checked


@checked
def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; "auto" takes CUDA, then MPS, then the CPU.

    Raises:
        UserError: there is no such device here.
    """
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if name == "auto":
        return torch.device(available[0])
    if name.partition(":")[0] not in available:
        raise UserError(f"There is no device {name!r} here; choose auto or one of {', '.join(available)}.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"{name!r} is no device; choose auto or one of {', '.join(available)}.") from None
