"""Rendered objects on textured ground, with a mask of the object: data made to order, to any size and without end.

What an image is belongs to its split and index alone, and is laid down in units of the image's side, so
``shapes:224`` shows the same scenes as ``shapes:64``. Position, size, rotation, colors and textures are drawn
alike for all classes: only the outline tells the class. Each class is its own mirror image, up to a rotation.
"""

import math

import numpy as np
from PIL import Image, ImageDraw

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, check_split
from moeprobe.inputs.surfaces import GROUND_LIGHT, draw_palette, draw_surface
from moeprobe.runtime.seeds import generator

_RESOLUTIONS = range(16, 1025)
_DEFAULT_RESOLUTION = 64
_LENGTHS = {"train": 16000, "val": 1000, "test": 1000}
# Changing this, or the order of the draws, makes another data set.
_SEED = 20250102
# The outline's outer radius, as a part of the image's side.
_RADII = (0.20, 0.42)
_SUPERSAMPLING = 4


class Shapes(ImageDataset):
    """Ten rendered shapes on textured ground, with masks; ``shapes:96`` sets the resolution (64 by default)."""

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        self._resolution = _parse_resolution(location)
        self.image_ids = [f"{split}/{index:05d}" for index in range(_LENGTHS[split])]
        self.class_names = tuple(OUTLINES)
        self._labels = [index % len(OUTLINES) for index in range(len(self.image_ids))]

    def example(self, index: int) -> Example:
        """Return scene ``index``; its label is ``index`` modulo 10, its mask where the object covers half a pixel."""
        label = range(len(self.image_ids))[index] % len(OUTLINES)
        random = generator(_SEED, "shapes", self.image_ids[index])
        coverage = _draw_coverage(tuple(OUTLINES.values())[label], random, self._resolution)
        ground_colors, object_colors = draw_palette(random)
        ground = draw_surface(random, ground_colors, self._resolution, light=GROUND_LIGHT)
        figure = draw_surface(random, object_colors, self._resolution, light=0.2)
        pixels = ground + (figure - ground) * coverage[:, :, None]
        image = Image.fromarray((pixels * 255).round().clip(0, 255).astype(np.uint8))
        return Example(image, self.image_ids[index], label=label, mask=coverage >= 0.5)


def _parse_resolution(location: str | None) -> int:
    if location is None:
        return _DEFAULT_RESOLUTION
    if not location.isdecimal() or int(location) not in _RESOLUTIONS:
        raise UserError(
            f"'shapes' takes a resolution from {_RESOLUTIONS[0]} to {_RESOLUTIONS[-1]}, as in shapes:96, "
            f"not {location!r}."
        )
    return int(location)


def _draw_coverage(
    polygons: tuple[np.ndarray, ...], random: np.random.Generator, resolution: int
) -> np.ndarray:
    """Return the object's share of each pixel, (resolution, resolution) float32, wholly inside the frame.

    ``polygons`` are filled in turn: object, hole.
    """
    radius = random.uniform(*_RADII)
    angle = random.uniform(0, 2 * math.pi)
    center = random.uniform(radius, 1 - radius, size=2)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    side = resolution * _SUPERSAMPLING
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)
    for number, polygon in enumerate(polygons):
        # Half a pixel: Pillow counts from pixel centers, the design from pixel corners.
        corners = (center + radius * polygon @ rotation.T) * side - 0.5
        draw.polygon([tuple(corner) for corner in corners], fill=0 if number % 2 else 255)
    return np.asarray(canvas.reduce(_SUPERSAMPLING), dtype=np.float32) / 255


# The outlines of ``shapes``: polygons inside the unit circle, each the mirror image of itself up to a rotation.

_CURVE = 96  # corners of a curved outline
_FLIP = np.array([1.0, -1.0])


def _ring(num_points: int, *, radius: float = 1.0) -> np.ndarray:
    """Return the corners of a regular polygon, the first of them straight up (y points down)."""
    angle = 2 * np.pi * np.arange(num_points) / num_points
    return radius * np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def _fit(points: np.ndarray) -> np.ndarray:
    """Return ``points`` moved and scaled so that the middle of their bounding box is 0 and the farthest is at 1."""
    points = points - (points.min(axis=0) + points.max(axis=0)) / 2
    return points / np.linalg.norm(points, axis=1).max()


def _star() -> np.ndarray:
    corners = _ring(10)
    corners[1::2] *= 0.42
    return corners


def _cross() -> np.ndarray:
    arm = 0.3
    quarter = np.array([(arm, -1), (arm, -arm), (1, -arm)])
    turn = np.array([[0, 1], [-1, 0]])
    return _fit(np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)]))


def _heart() -> np.ndarray:
    t = 2 * np.pi * np.arange(_CURVE) / _CURVE
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return _fit(np.stack([x, y], axis=1) * _FLIP)


def _crescent() -> np.ndarray:
    """Return the unit disc less another disc that is shifted: two arcs that meet at their tips."""
    shift, radius = 0.42, 0.8
    tip = (1 - radius**2 + shift**2) / (2 * shift)  # x where the circles cross
    outer_tip = np.arccos(tip)
    inner_tip = np.arccos((tip - shift) / radius)
    outer = np.linspace(outer_tip, 2 * np.pi - outer_tip, _CURVE)
    inner = np.linspace(2 * np.pi - inner_tip, inner_tip, _CURVE)
    arcs = [np.stack([np.cos(outer), np.sin(outer)], axis=1)]
    arcs.append(np.stack([shift + radius * np.cos(inner), radius * np.sin(inner)], axis=1))
    return _fit(np.concatenate(arcs))


def _arrow() -> np.ndarray:
    half = np.array([(0, -1), (0.75, -0.15), (0.27, -0.15), (0.27, 0.95)])
    return _fit(np.concatenate([half, half[:0:-1] * -_FLIP]))


# name -> polygons filled in turn: object, hole.
OUTLINES: dict[str, tuple[np.ndarray, ...]] = {
    "arrow": (_arrow(),),
    "circle": (_ring(_CURVE),),
    "crescent": (_crescent(),),
    "cross": (_cross(),),
    "heart": (_heart(),),
    "hexagon": (_ring(6),),
    "ring": (_ring(_CURVE), _ring(_CURVE, radius=0.6)),
    "square": (_ring(4),),
    "star": (_star(),),
    "triangle": (_ring(3),),
}
