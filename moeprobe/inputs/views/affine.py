"""A random affine map of the whole image, from nothing to its full size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import Framing, Sample, sample
from moeprobe.inputs.views.base import Amounts, SeverityView


@dataclass(frozen=True)
class Affine(SeverityView):
    """A random rotation, shear, scale and translation, all growing together from zero.

    At severity 1 the rotation is uniform within ± ``rotation`` degrees, the shear along x within ± ``shear``, the
    translation along either axis within ± ``translation`` of the frame, and the scale log-uniform between
    1 / ``scale`` and ``scale``. One draw per image; a severity multiplies the angle, the shear, the translation and
    the logarithm of the scale, so a sweep is nested and severity 0 is the clean image bit for bit. All of it acts
    about the center of the clean view; pixels from outside the source are gray and have no partner.
    """

    rotation: float = 30.0
    shear: float = 0.3
    translation: float = 0.2
    scale: float = 1.25

    severities: ClassVar[tuple[float, ...]] = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    unit: ClassVar[str] = "affine: share of the full random map"
    amounts: ClassVar[Amounts] = Amounts(0, 1, "The severity of an affine map")

    def __post_init__(self) -> None:
        if not self.scale >= 1:
            raise UserError(
                f"scale must be at least 1 (it is drawn from 1 / scale to scale); got {self.scale}."
            )

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` moved by each share of one random affine map."""
        self.check(severities)
        draw = rng.uniform(-1, 1, size=5)
        clean = framing.to_source(image)
        return [
            sample(image, clean @ self._movement(severity * draw, framing.size), framing.size)
            for severity in severities
        ]

    def _movement(self, amounts: np.ndarray, size: int) -> Map:
        """Return the map from the moved view to the clean one, for five amounts in [-1, 1]."""
        angle, shear, logarithm, x, y = (float(amount) for amount in amounts)
        scale = self.scale**logarithm
        matrix = (
            geometry.rotation(self.rotation * angle)
            @ geometry.shearing(self.shear * shear, 0)
            @ geometry.scaling(scale, scale)
        )
        shift = geometry.translation(self.translation * size * x, self.translation * size * y)
        return shift @ geometry.around(matrix, size / 2, size / 2)
