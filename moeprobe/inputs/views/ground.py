"""Another ground behind the object of an image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.errors import UserError, option
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.regions import MASK, foreground
from moeprobe.inputs.surfaces import draw_ground
from moeprobe.inputs.views.base import Amounts, SeverityView


@dataclass(frozen=True)
class Ground(SeverityView):
    """The ground behind the object is mixed with another one; the object stays as it is. For data with masks.

    The new ground is a texture as ``shapes`` has, drawn for the image at the model's input size. Compare foreground
    patches with background patches: a router that goes by the object keeps the experts of the first.
    """

    aligned: ClassVar[bool] = True
    needs: ClassVar[str] = MASK
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.25, 0.5, 0.75, 1.0)
    unit: ClassVar[str] = "share of the new ground"
    amounts: ClassVar[Amounts] = Amounts(0, 1, "A share of the ground")

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` with each share of the new ground."""
        import torch

        self.check(severities)
        mask = image.info.get(MASK)
        if mask is None:
            raise UserError(
                "The view ground needs to know which pixels show the object: take data with masks (shapes, "
                f"photographs), or name a folder of masks with {option('masks')}."
            )
        clean = framing.clean(image)
        is_object = torch.from_numpy(foreground(mask, clean.to_source, framing.size))
        ground = torch.from_numpy(draw_ground(rng, framing.size).clip(0, 1)).permute(2, 0, 1)
        mixed = [clean.pixels.lerp(ground, severity) for severity in severities]
        return [Sample(torch.where(is_object, clean.pixels, pixels), clean.to_source) for pixels in mixed]
