"""A dot in a picture, found again in a view of it: does the map tell where the pixels came from?

The dot is a red disc with an even gray rim on a gray chequered background, so what tells it from anything gray
(background, padding, cutouts) is red minus green. It is symmetric, so its centroid stays its center under any affine
resampling and any operation that works pixel by pixel or with a symmetric filter. The background has all levels in
all channels, so that auto-contrast and equalize, which treat each channel by itself, do not turn grays colored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import Sample
from moeprobe.runtime.seeds import generator

RADIUS = 5.0  # source pixels
RED, RIM = (255, 40, 40), 110
SOURCES = ((96, 72), (60, 90))
SIZE = 64

Make = Callable[[Image.Image, np.random.Generator], Sample]


def picture(width: int, height: int, dot: tuple[float, float] | None = None) -> Image.Image:
    """A gray picture, with a dot centerd at the continuous source coordinates ``dot``."""
    levels = generator(0, "background").permutation(np.linspace(0, 255, 16)).reshape(4, 4)
    chequered = np.tile(levels.repeat(3, axis=0).repeat(3, axis=1), (height // 12 + 1, width // 12 + 1))
    pixels = np.repeat(chequered[:height, :width, None], 3, axis=2)
    if dot is not None:
        y, x = np.mgrid[:height, :width] + 0.5
        distance = np.hypot(x - dot[0], y - dot[1])
        pixels[distance < RADIUS + 3] = RIM
        covered = np.clip(RADIUS + 0.5 - distance, 0, 1)
        pixels += covered[..., None] * (np.array(RED) - pixels)
    return Image.fromarray(pixels.round().astype(np.uint8))


def redness(pixels: torch.Tensor) -> np.ndarray:
    """How far each pixel ``(size, size)`` is from gray."""
    return np.abs(pixels[0].numpy().astype(np.float64) - pixels[1].numpy())


def centroid(weights: np.ndarray) -> np.ndarray:
    """The center (x, y) of the part above half the dot's level, in continuous pixel coordinates.

    A threshold (solarize) can make the dot's soft edge brighter than its flat inside: it counts no more than that.
    """
    level = np.median(weights[weights > 0.3 * weights.max()])
    weights = np.clip(weights, level / 2, level) - level / 2
    y, x = np.mgrid[: weights.shape[0], : weights.shape[1]] + 0.5
    return np.array([(weights * x).sum(), (weights * y).sum()]) / weights.sum()


def recognizable(found: np.ndarray, blank: np.ndarray, to_source: Map) -> bool:
    """Whether one thing of the dot's size is there, wherever: not bleached, drowned in noise or one of many.

    (Equalize treats each channel by itself; a threshold after it can make whole gray squares colored.)
    """
    if found.max() < 0.1 or blank.max() > 0.25 * found.max():
        return False
    bright = np.argwhere(found > found.max() / 2)
    size = len(bright) * geometry.source_area(to_source) / (np.pi * RADIUS**2)
    spread = np.linalg.norm(bright - np.median(bright, axis=0), axis=1).max()
    reach = RADIUS * np.linalg.norm(geometry.inverse(to_source)[:2, :2], ord=2) + 2
    return bool(0.7 < size < 1.4 and spread < reach)


@dataclass
class Count:
    """Where the dots were found, relative to where the maps say, in view pixels; and those not checked."""

    errors: list[np.ndarray] = field(default_factory=list)
    no_room: int = 0
    destroyed: int = 0

    def check(self, *, at_least: int) -> None:
        """Every dot within half a pixel, the average one where the map says, and enough of them."""
        assert len(self.errors) >= at_least, f"{len(self.errors)} checked; {self}"
        distances = np.linalg.norm(self.errors, axis=1)
        assert distances.max() < 0.5, f"a dot is off by {distances.max():.2f} pixels"
        # An offset common to all (half a pixel, say) would show here long before it reaches the limit above.
        assert np.abs(np.mean(self.errors, axis=0)).max() < 0.08, np.mean(self.errors, axis=0)
        assert np.median(distances) < 0.15, np.median(distances)


def place(to_source: Map, width: int, height: int, rng: np.random.Generator) -> tuple[float, float] | None:
    """A place for a dot in the source such that all of it lies in the source and in the view; None: no room."""
    to_view = geometry.inverse(to_source)
    margin = RADIUS * np.linalg.norm(to_view[:2, :2], ord=2) + 2.5
    for _ in range(30 if margin < SIZE / 2 else 0):
        x, y = geometry.apply(to_source, np.array([[*rng.uniform(margin, SIZE - margin, 2), 1.0]]))[0]
        if RADIUS + 1 < x < width - RADIUS - 1 and RADIUS + 1 < y < height - RADIUS - 1:
            return float(x), float(y)
    return None


def follow(make: Make, *, draws: int, count: Count) -> None:
    """Draw a dot into each of ``draws`` pictures and look for it in their views."""
    for draw in range(draws):
        width, height = SOURCES[draw % len(SOURCES)]
        blank = make(picture(width, height), generator(0, "view", draw=draw))
        dot = place(blank.to_source, width, height, generator(0, "dot", draw=draw))
        if dot is None:
            count.no_room += 1
            continue
        view = make(picture(width, height, dot), generator(0, "view", draw=draw))
        np.testing.assert_array_equal(view.to_source, blank.to_source)  # a map depends on no pixel
        found = redness(view.pixels)
        if not recognizable(found, redness(blank.pixels), view.to_source):
            count.destroyed += 1
            continue
        expected = geometry.apply(geometry.inverse(view.to_source), np.array([[*dot, 1.0]]))[0]
        count.errors.append(centroid(found) - expected)
