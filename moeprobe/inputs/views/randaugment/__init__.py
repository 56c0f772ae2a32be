"""RandAugment with its geometry tracked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import Framing, Sample, to_tensor
from moeprobe.inputs.resample import render
from moeprobe.inputs.views.base import PairView, SeverityView, check_severities
from moeprobe.inputs.views.crops import ASPECT, Range, check_ranges, draw_crop
from moeprobe.inputs.views.randaugment.color import COLOR, cutout
from moeprobe.inputs.views.randaugment.geometric import GEOMETRIC
from moeprobe.runtime.catalog import unknown

MAX_MAGNITUDE = 10.0
OPERATIONS: tuple[str, ...] = (*COLOR, "cutout", *GEOMETRIC)


@dataclass(frozen=True)
class _Step:
    """One drawn operation: its name, the sign of its movement, and the place of a cutout."""

    operation: str
    sign: float
    center: tuple[float, float]


@dataclass(frozen=True)
class Randaugment(PairView, SeverityView):
    """Random color and geometric operations: PRC's pretraining pair, or a sweep over their magnitude.

    As a pair: two crops of ``area``, each mirrored half the time if ``flip``, and ``num_layers`` operations at
    ``magnitude`` on each. As a sweep: ``num_layers`` operations, drawn once per image, on the clean framing; the
    severity is the magnitude. Operations are drawn uniformly, with replacement, from ``operations`` and always applied.

    Magnitude 10 is the operation as released; 0 changes nothing, for every operation. (So auto-contrast, equalize and
    invert, which know no magnitude, are blended with the original by magnitude / 10; see ``_color.py``. Beyond 10
    the released formulas wrap around, so 10 is the limit.)

    Crop, mirroring, rotation, shear and translation are composed into one map and the source is resampled once,
    bilinearly; then the color operations and cutouts follow in the order drawn. The released programs interleave
    them and resample once per operation, by nearest neighbors. The pictures differ where a geometric operation
    follows: there the gray filling takes no part in the earlier color operations, and an earlier cutout's hole moves
    with the picture; here the filling is recolored and the hole stays upright. Empty pixels are gray 128 as in
    V-MoE (PRC fills by reflection, which would show content where the map says there is none). PRC's extra chance
    of no operation at all (1 in 17) is left out, as in V-MoE.
    """

    num_layers: int = 2
    magnitude: float = MAX_MAGNITUDE
    area: Range = (0.05, 1.0)
    aspect: Range = ASPECT
    flip: bool = True
    operations: tuple[str, ...] = OPERATIONS

    severities: ClassVar[tuple[float, ...]] = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    unit: ClassVar[str] = "RandAugment magnitude"

    def __post_init__(self) -> None:
        check_ranges(aspect=self.aspect, area=self.area)
        check_severities([self.magnitude], low=0, high=MAX_MAGNITUDE, what="RandAugment's magnitude")
        if self.num_layers < 0:
            raise UserError(f"num_layers cannot be negative; got {self.num_layers}.")
        if not self.operations:
            raise UserError(f"operations is empty; choose from {', '.join(OPERATIONS)}.")
        for name in self.operations:
            if name not in OPERATIONS:
                raise UserError(unknown("RandAugment operation", name, OPERATIONS))

    def pair(
        self, image: Image.Image, *, framing: Framing, rng: np.random.Generator
    ) -> tuple[Sample, Sample]:
        """Return two independent crops of ``image``, each augmented on its own."""
        return self._crop(image, framing, rng), self._crop(image, framing, rng)

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return the clean view of ``image`` with the same operations at each magnitude."""
        check_severities(severities, low=0, high=MAX_MAGNITUDE, what="RandAugment's magnitude")
        steps = self._draw(rng)
        base = framing.to_source(image)
        return [_augment(image, base, steps, magnitude, framing.size) for magnitude in severities]

    def _crop(self, image: Image.Image, framing: Framing, rng: np.random.Generator) -> Sample:
        base = draw_crop(
            image, size=framing.size, area=self.area, aspect=self.aspect, flip=self.flip, rng=rng
        )
        return _augment(image, base, self._draw(rng), self.magnitude, framing.size)

    def _draw(self, rng: np.random.Generator) -> list[_Step]:
        """Draw the operations; each consumes the same random numbers, whatever the operation."""
        steps = []
        for _ in range(self.num_layers):
            operation = self.operations[int(rng.integers(len(self.operations)))]
            sign, x, y = rng.random(3)
            steps.append(_Step(operation, 1.0 if sign < 0.5 else -1.0, (float(x), float(y))))
        return steps


def _augment(image: Image.Image, base: Map, steps: Sequence[_Step], magnitude: float, size: int) -> Sample:
    """Return the view: all geometry in one resampling, then the other steps in order."""
    strength = magnitude / MAX_MAGNITUDE
    to_source = base
    for step in steps:
        if step.operation in GEOMETRIC:
            # A later operation reads from what an earlier one wrote, so its map is applied first: on the right.
            to_source = to_source @ GEOMETRIC[step.operation](step.sign * strength, size)
    view = render(image, to_source, size)
    for step in steps:
        if step.operation == "cutout":
            view = cutout(view, strength, center=step.center)
        elif step.operation in COLOR:
            view = COLOR[step.operation](view, strength)
    return Sample(to_tensor(view), to_source)
