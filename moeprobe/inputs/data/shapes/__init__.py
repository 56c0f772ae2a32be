"""Rendered objects on textured ground, with a mask of the object: data made to order, to any size and without end.

What an image is belongs to its split and index alone, and is laid down in units of the image's side, so
``shapes:224`` shows the same scenes as ``shapes:64``. Position, size, rotation, colors and textures are drawn
alike for all classes: only the outline tells the class. Each class is its own mirror image, up to a rotation.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, check_split
from moeprobe.inputs.data.shapes.outlines import OUTLINES
from moeprobe.inputs.data.shapes.textures import draw_ground, draw_object, draw_palette
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

    def example(self, index: int) -> Example:
        """Return scene ``index``; its label is ``index`` modulo 10, its mask where the object covers half a pixel."""
        label = range(len(self.image_ids))[index] % len(OUTLINES)
        random = generator(_SEED, "shapes", self.image_ids[index])
        coverage = _draw_coverage(tuple(OUTLINES.values())[label], random, self._resolution)
        ground_colors, object_colors = draw_palette(random)
        ground = draw_ground(random, ground_colors, self._resolution)
        figure = draw_object(random, object_colors, self._resolution)
        pixels = ground + (figure - ground) * coverage[:, :, None]
        image = Image.fromarray((pixels * 255).round().clip(0, 255).astype(np.uint8))
        return Example(image, self.image_ids[index], label=label, mask=coverage >= 0.5)

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every scene."""
        return np.arange(len(self), dtype=np.int64) % len(OUTLINES)


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
