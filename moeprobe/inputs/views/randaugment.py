"""RandAugment with its geometry tracked: operations on colors and a cutout, and geometric operations as maps.

An operation on colors takes an RGB image and a strength in [0, 1]: 1 is the operation at magnitude 10 as V-MoE and PRC
train with it, 0 returns the image unchanged, bit for bit. In between, the released programs are followed where their
scale starts at the identity (solarize-add, cutout). Where it does not (their magnitude 0 makes a black image of
posterize and a factor 0.1 of the enhancements) ours runs straight from the identity to the released operation; where
there is no scale (auto-contrast, equalize, invert) the result is blended with the original.

A geometric one takes an amount in [-1, 1] (a strength with a sign; 0 moves nothing, 1 is magnitude 10) and the side of
the frame in pixels, and returns the map from a point of the operation's output to the point of its input shown there.

Source: the AutoAugment reference program of TensorFlow's TPU models, whose pivots are kept: rotation is about the
center of the frame, shear about its upper left corner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import FILL, Framing, Sample, render, to_tensor
from moeprobe.inputs.views.base import Amounts, PairView, SeverityView
from moeprobe.inputs.views.crops import ASPECT, Range, check_ranges, draw_crop
from moeprobe.runtime.catalog import describe_unknown

_ROTATION = 30.0  # degrees
_SHEAR = 0.3
# 100 pixels at magnitude 10, whatever the size, in the released programs, which use it at 224 pixels.
_TRANSLATION = 100 / 224


# Each maps an amount and the frame's side in pixels to a transformation.
GEOMETRIC: dict[str, Callable[[float, int], Map]] = {
    "rotate": lambda amount, size: geometry.around(geometry.rotation(_ROTATION * amount), size / 2, size / 2),
    "shear_x": lambda amount, _: geometry.shearing(_SHEAR * amount, 0),
    "shear_y": lambda amount, _: geometry.shearing(0, _SHEAR * amount),
    "translate_x": lambda amount, size: geometry.translation(_TRANSLATION * size * amount, 0),
    "translate_y": lambda amount, size: geometry.translation(0, _TRANSLATION * size * amount),
}


_ENHANCEMENT = 0.9  # factor 1.9
_POSTERIZED_BITS = 4  # taken away from 8
_SOLARIZE_ADDITION = 110
_SOLARIZE_ADD_THRESHOLD = 128
# Half the side of the hole: 40 pixels in the released programs, which use it at 224 pixels.
_CUTOUT = 40 / 224

Operation = Callable[[Image.Image, float], Image.Image]


def _blend_with(operation: Callable[[Image.Image], Image.Image]) -> Operation:
    return lambda image, strength: Image.blend(image, operation(image), strength)


def _enhance_with(kind: Callable[[Image.Image], Any]) -> Operation:
    return lambda image, strength: kind(image).enhance(1 + _ENHANCEMENT * strength)


def _posterize(image: Image.Image, strength: float) -> Image.Image:
    return ImageOps.posterize(image, 8 - round(_POSTERIZED_BITS * strength))


def _solarize(image: Image.Image, strength: float) -> Image.Image:
    """Invert pixels at least as bright as a threshold, which falls from 256 to 0.

    At magnitude 10 the released threshold of 256 wraps around to 0 in 8 bits and the whole image is inverted; so it is
    here, at full strength.
    """
    return ImageOps.solarize(image, round(256 * (1 - strength)))


def _solarize_add(image: Image.Image, strength: float) -> Image.Image:
    addition = round(_SOLARIZE_ADDITION * strength)
    table = [min(255, v + addition) if v < _SOLARIZE_ADD_THRESHOLD else v for v in range(256)]
    return image.point(table * 3)


# The order is that of the numbers by which operations are drawn.
COLOR: dict[str, Operation] = {
    "auto_contrast": _blend_with(ImageOps.autocontrast),
    "brightness": _enhance_with(ImageEnhance.Brightness),
    "color": _enhance_with(ImageEnhance.Color),
    # Away from the mean gray; the released program takes a constant, 196 at 224 pixels, for the mean.
    "contrast": _enhance_with(ImageEnhance.Contrast),
    "equalize": _blend_with(ImageOps.equalize),
    "invert": _blend_with(ImageOps.invert),
    "posterize": _posterize,
    "sharpness": _enhance_with(ImageEnhance.Sharpness),
    "solarize": _solarize,
    "solarize_add": _solarize_add,
}


def cutout(image: Image.Image, strength: float, *, center: tuple[float, float]) -> Image.Image:
    """Return ``image`` with a gray square about ``center`` (shares of the width and of the height).

    The square is cut off at the border of the image. It moves nothing: the patches under it keep their partners.
    """
    half = _CUTOUT * image.width * strength
    x, y = center[0] * image.width, center[1] * image.height
    box = round(x - half), round(y - half), round(x + half), round(y + half)
    if half == 0:
        return image
    result = image.copy()
    result.paste(FILL, box)
    return result


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
    invert, which know no magnitude, are blended with the original by magnitude / 10. Beyond 10 the released formulas
    wrap around, so 10 is the limit.)

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
    amounts: ClassVar[Amounts] = Amounts(0, MAX_MAGNITUDE, "RandAugment's magnitude")

    def __post_init__(self) -> None:
        check_ranges(aspect=self.aspect, area=self.area)
        self.check([self.magnitude])
        if self.num_layers < 0:
            raise UserError(f"num_layers cannot be negative; got {self.num_layers}.")
        if not self.operations:
            raise UserError(f"operations is empty; choose from {', '.join(OPERATIONS)}.")
        for name in self.operations:
            if name not in OPERATIONS:
                raise UserError(describe_unknown("RandAugment operation", name, OPERATIONS))

    def pair(
        self, image: Image.Image, *, framing: Framing, rng: np.random.Generator
    ) -> tuple[Sample, Sample]:
        """Return two independent crops of ``image``, each augmented on its own."""
        return self._crop(image, framing, rng), self._crop(image, framing, rng)

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return the clean view of ``image`` with the same operations at each magnitude."""
        self.check(severities)
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
