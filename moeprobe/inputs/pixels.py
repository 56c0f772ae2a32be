"""Images as a caller has them → pixels as a model takes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing

# Resizing in floating point may leave [0, 1] by this much.
_ROUNDING = 1e-4


def to_pixels(images: Any, framing: Framing) -> Tensor:
    """Return images as ``(B, 3, H, W)`` float32 in [0, 1].

    Args:
        images: a PIL image or a list of them, which are framed as probes do; or pixels, float in [0, 1] or uint8:
            tensors and arrays ``(B, 3, H, W)`` or ``(3, H, W)``, arrays with the channels last too.
        framing: how the model's images are framed.

    Raises:
        UserError: they are no such thing, or floats outside of [0, 1].
    """
    if isinstance(images, Image.Image):
        images = [images]
    if isinstance(images, Sequence) and images and all(isinstance(image, Image.Image) for image in images):
        return torch.stack([framing.clean(image.convert("RGB")).pixels for image in images])
    if isinstance(images, np.ndarray):
        images = _from_array(images)
    if not isinstance(images, Tensor):
        raise UserError(
            "Images are a tensor or an array (B, 3, H, W) in [0, 1] or of uint8, or PIL images; got "
            f"{type(images).__name__}."
        )
    if images.ndim == 3:
        images = images[None]
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise UserError(
            f"Pixels are floats in [0, 1], or uint8; got {str(images.dtype).removeprefix('torch.')}."
        )
    if images.numel():
        low, high = images.min().item(), images.max().item()
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise UserError(
                f"Images are floats in [0, 1], before any normalization (the model has its own); these reach from "
                f"{low:g} to {high:g}. Divide by 255 if values reach 255, or give uint8."
            )
    return images.float()


def _from_array(images: np.ndarray[Any, Any]) -> Tensor:
    """Return an array as a tensor with the channels before height and width."""
    if images.dtype == object or images.dtype.kind not in "fiu":
        raise UserError(f"Pixels are floats in [0, 1], or uint8; got an array of {images.dtype}.")
    if images.ndim in (3, 4) and images.shape[-1] == 3 and images.shape[-3] != 3:
        images = np.moveaxis(images, -1, -3)
    return torch.from_numpy(np.ascontiguousarray(images))
