"""Two-colored textures that look the same at every resolution: of ``shapes``, and of new ground behind objects.

A pattern is a field (resolution, resolution) in 0..1 that mixes two colors; coordinates are in units of the image's
side, so a stripe is as wide a part of a small image as of a large one.
"""

import colorsys
from collections.abc import Callable

import numpy as np
from PIL import Image

_Pattern = Callable[[np.random.Generator, int], np.ndarray]
Colors = tuple[np.ndarray, np.ndarray]  # two of (3,), RGB in 0..1

# By how much one side of a ground is brighter, see ``draw_surface``.
GROUND_LIGHT = 0.12
# How far the object's color stays from the ground's (Euclidean, RGB in 0..1).
_CONTRAST = 0.45
_CANDIDATES = 32


def draw_palette(random: np.random.Generator) -> tuple[Colors, Colors]:
    """Return the colors of the ground and of the object: any two, as long as they can be distinguished."""
    ground = _draw_color(random)
    candidates = np.stack([_draw_color(random) for _ in range(_CANDIDATES)])
    distance = np.linalg.norm(candidates - ground, axis=1)
    enough = distance >= _CONTRAST
    figure = candidates[int(np.argmax(enough) if enough.any() else np.argmax(distance))]
    return _vary(random, ground), _vary(random, figure)


def draw_surface(random: np.random.Generator, colors: Colors, resolution: int, *, light: float) -> np.ndarray:
    """Return a pattern, brighter by ``light`` towards one side and darker towards the other, as float32.

    Its shape is (resolution, resolution, 3).
    """
    pattern = _PATTERNS[int(random.integers(len(_PATTERNS)))]
    first, second = colors
    texture = first + (second - first) * pattern(random, resolution)[:, :, None]
    along = _axis(random.uniform(0, 2 * np.pi), resolution)
    return texture * (1 + light * along)[:, :, None]


def draw_ground(random: np.random.Generator, resolution: int) -> np.ndarray:
    """Return a ground of its own for an object that was drawn elsewhere ``(resolution, resolution, 3)``, float32."""
    colors, _ = draw_palette(random)
    return draw_surface(random, colors, resolution, light=GROUND_LIGHT)


def _draw_color(random: np.random.Generator) -> np.ndarray:
    hue, saturation, value = random.random(), random.uniform(0.1, 0.75), random.uniform(0.25, 0.95)
    return np.array(colorsys.hsv_to_rgb(hue, saturation, value), dtype=np.float32)


def _vary(random: np.random.Generator, color: np.ndarray) -> Colors:
    """Return the two colors of a texture, on either side of ``color`` so that their mean stays."""
    step = random.uniform(0.06, 0.16) * np.sign(random.uniform(-1, 1, size=3))
    step = np.minimum(np.abs(step), np.minimum(color, 1 - color)) * np.sign(step)
    return (color - step).astype(np.float32), (color + step).astype(np.float32)


def _axis(angle: float, resolution: int) -> np.ndarray:
    """Return each pixel center's coordinate along a direction, 0 in the middle of the image."""
    center = (np.arange(resolution, dtype=np.float32) + 0.5) / resolution - 0.5
    return np.float32(np.cos(angle)) * center[None, :] + np.float32(np.sin(angle)) * center[:, None]


def _wave(random: np.random.Generator, angle: float, resolution: int) -> np.ndarray:
    """Return a sine of 3 to 9 periods across the image, in -1..1."""
    frequency, phase = random.uniform(3, 9), random.uniform(0, 2 * np.pi)
    return np.sin(np.float32(2 * np.pi * frequency) * _axis(angle, resolution) + np.float32(phase))


def _stripes(random: np.random.Generator, resolution: int) -> np.ndarray:
    return 0.5 + 0.5 * _wave(random, random.uniform(0, np.pi), resolution)


def _checks(random: np.random.Generator, resolution: int) -> np.ndarray:
    angle = random.uniform(0, np.pi)
    waves = _wave(random, angle, resolution) * _wave(random, angle + np.pi / 2, resolution)
    # Steep, not a step: a step would alias, and differ between resolutions.
    return 0.5 + 0.5 * np.clip(4 * waves, -1, 1)


def _clouds(random: np.random.Generator, resolution: int) -> np.ndarray:
    """Return smooth noise of three octaves, in 0..1."""
    total = np.zeros((resolution, resolution), dtype=np.float32)
    for octave, weight in enumerate((0.5, 0.3, 0.2)):
        cells = 4 * 2**octave
        lattice = Image.fromarray(random.random((cells, cells), dtype=np.float32))
        total += weight * np.asarray(lattice.resize((resolution, resolution), Image.Resampling.BICUBIC))
    return np.clip(1.8 * (total - 0.5) + 0.5, 0, 1)


def _grain(random: np.random.Generator, resolution: int) -> np.ndarray:
    """Return fine noise, in 0..1: 32 grains across the image whatever its resolution."""
    lattice = Image.fromarray(random.random((32, 32), dtype=np.float32))
    return np.clip(np.asarray(lattice.resize((resolution, resolution), Image.Resampling.BICUBIC)), 0, 1)


def _plain(random: np.random.Generator, resolution: int) -> np.ndarray:
    return np.full((resolution, resolution), 0.5, dtype=np.float32)


_PATTERNS: tuple[_Pattern, ...] = (_stripes, _checks, _clouds, _grain, _plain)
