"""RandAugment's geometric operations, as maps.

Each takes an amount in [-1, 1] (a strength with a sign; 0 moves nothing, 1 is magnitude 10) and the side of the frame
in pixels, and returns the map from a point of the operation's output to the point of its input shown there.

Source: the AutoAugment reference program of TensorFlow's TPU models, whose pivots are kept: rotation is about the
center of the frame, shear about its upper left corner.
"""

from collections.abc import Callable

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map

_ROTATION = 30.0  # degrees
_SHEAR = 0.3
# 100 pixels at magnitude 10, whatever the size, in the released programs, which use it at 224 pixels.
_TRANSLATION = 100 / 224


def _rotate(amount: float, size: int) -> Map:
    return geometry.around(geometry.rotation(_ROTATION * amount), size / 2, size / 2)


def _shear_x(amount: float, size: int) -> Map:
    return geometry.shearing(_SHEAR * amount, 0)


def _shear_y(amount: float, size: int) -> Map:
    return geometry.shearing(0, _SHEAR * amount)


def _translate_x(amount: float, size: int) -> Map:
    return geometry.translation(_TRANSLATION * size * amount, 0)


def _translate_y(amount: float, size: int) -> Map:
    return geometry.translation(0, _TRANSLATION * size * amount)


GEOMETRIC: dict[str, Callable[[float, int], Map]] = {
    "rotate": _rotate,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
