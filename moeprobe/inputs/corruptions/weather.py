"""Snow, frost, fog and spatter of ImageNet-C, from textures that are drawn.

A texture is drawn at 224 pixels and resized to the image, except fog, which is drawn at the image's own size.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, spatial

from moeprobe.inputs.corruptions import SIDE
from moeprobe.inputs.corruptions.resampling import Pixels, gaussian, resize, smear

# Mean, standard deviation and zoom of the flakes, threshold, radius and σ of their fall, share of the image.
_SNOW = (
    (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
_FROST = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # shares of image and ice
_FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))  # thickness, decay by octave
# Mean, standard deviation and σ of the liquid, threshold, strength of water or σ of mud.
_SPATTER = (
    (0.65, 0.3, 4, 0.69, 0.6),
    (0.65, 0.3, 3, 0.68, 0.6),
    (0.65, 0.3, 2, 0.68, 0.5),
    (0.65, 0.3, 1, 0.65, 1.5),
    (0.67, 0.4, 1, 0.65, 1.5),
)
_FIRST_MUD = 4
_MUD_EDGE = 0.8
_MUD = np.array([63, 42, 20], np.float32)[:, None, None] / 255
_WATER = np.array([175, 238, 238], np.float32)[:, None, None] / 255
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]  # of ITU-R BT.601
# Coarse and fine; and by how many pixels their edges are bent.
_CRYSTALS = (40, 700)
_BEND = 40
_ICE = np.array([0.78, 0.9, 1.0])[:, None, None]
# The last ice, by the state that its draws began in and its side.
_LAST_ICE: dict[tuple[str, int], Pixels] = {}


def fog(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add a landscape of diamonds and squares, scaled back to the brightest pixel.

    The landscape has the least power of two of pixels that covers the image, 256 for 224.
    """
    thickness, decay = _FOG[severity - 1]
    side, brightest = pixels.shape[-1], float(pixels.max())
    haze = landscape(1 << (side - 1).bit_length(), decay, rng)[:side, :side].astype(np.float32)
    # A black image stays black.
    return (pixels + thickness * haze) * (brightest / (brightest + thickness))


def landscape(side: int, decay: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return random periodic heights ``(side, side)`` from 0 to 1, by diamond-square.

    Heights between known ones are their mean and a uniform random number, whose range falls by ``decay ** 2`` from
    one octave to the next (A. Fournier, D. Fussell, L. Carpenter, "Computer rendering of stochastic models", 1982).

    Args:
        side: a power of two.
        decay: the larger, the smoother.
        rng: source of the draws.
    """
    heights, step, reach = np.zeros((side, side)), side, 1.0
    while step > 1:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        centers = _between(pairs + np.roll(pairs, -1, 1), reach, rng)
        heights[half::step, half::step] = centers
        beside = corners + np.roll(corners, -1, 1) + centers + np.roll(centers, 1, 0)
        heights[::step, half::step] = _between(beside, reach, rng)
        heights[half::step, ::step] = _between(pairs + centers + np.roll(centers, 1, 1), reach, rng)
        step, reach = half, reach / decay**2
    heights -= heights.min()
    return heights / max(heights.max(), np.finfo(np.float64).tiny)


def _between(of_four: NDArray[np.float64], reach: float, rng: np.random.Generator) -> NDArray[np.float64]:
    return of_four / 4 + rng.uniform(-reach, reach, of_four.shape)


def frost(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Lay ice over the image: a weighted sum, cut off at white.

    The published program takes a piece of one of five photographs of frost, which are not part of moeprobe: the ice
    is drawn here (``ice``), so that numbers are not comparable to the published ones.
    """
    image_share, ice_share = _FROST[severity - 1]
    return image_share * pixels + ice_share * _resized_ice(rng, pixels.shape[-1])


def _resized_ice(rng: np.random.Generator, side: int) -> Pixels:
    """Return ice, which the severities of an image share: drawing it takes longer than all else of a frost."""
    key = (str(rng.bit_generator.state), side)
    resized = _LAST_ICE.get(key)
    if resized is None:
        resized = resize(ice(rng), side)
        _LAST_ICE.clear()
        _LAST_ICE[key] = resized
    return resized


def ice(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return ice ``(3, 224, 224)``: clouds, and the edges of coarse and of fine crystals, which grow from seeds."""
    heights = landscape(256, 1.5, rng)[:SIDE, :SIDE]
    bend = _BEND * np.stack([heights, landscape(256, 1.25, rng)[:SIDE, :SIDE]], axis=-1)
    points = np.moveaxis(np.indices((SIDE, SIDE)), 0, -1) + bend
    edges = [_edges(points, seeds=count, rng=rng) for count in _CRYSTALS]
    return _ICE * (0.1 + 0.5 * heights + 0.35 * edges[0] + 0.4 * heights * edges[1]).clip(0, 1)


def _edges(points: NDArray[np.float64], *, seeds: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return how near points ``(S, S, 2)`` are to the edge between two crystals, 1 = at it."""
    tree = spatial.cKDTree(rng.uniform(0, SIDE, size=(seeds, 2)))
    near, far = np.moveaxis(tree.query(points, k=2)[0], -1, 0)
    return np.exp(-(far - near) / 2)


def snow(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add falling flakes and the same turned by 180 degrees, over a whitened image."""
    mean, deviation, zoom, threshold, radius, sigma, share = _SNOW[severity - 1]
    flakes = rng.normal(mean, deviation, size=(SIDE, SIDE))
    center = int(np.ceil(SIDE / zoom))
    start = (SIDE - center) // 2
    flakes = resize(flakes[None, start : start + center, start : start + center], SIDE)[0]
    flakes = np.where(flakes < threshold, 0, flakes.clip(0, 1)).astype(np.float32)
    # Down, within 45 degrees.
    falling = smear(flakes, radius=radius, sigma=sigma, angle=rng.uniform(np.pi / 4, 3 * np.pi / 4))
    layer = resize((falling + falling[::-1, ::-1])[None], pixels.shape[-1])
    white = np.maximum(pixels, 1.5 * (_GRAY * pixels).sum(0) + 0.5)
    return share * pixels + (1 - share) * white + layer


def spatter(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Lay drops of water (severities 1 to 3) or mud (4, 5) over the image.

    Drops are where blurred noise exceeds a threshold. The shine of water is drawn here from the slope of the drops
    and their rims; the published program takes edges, distances and an embossing filter of OpenCV.
    """
    mean, deviation, sigma, threshold, amount = _SPATTER[severity - 1]
    liquid = gaussian(rng.normal(mean, deviation, size=(SIDE, SIDE)), sigma)
    drops = (liquid > threshold).astype(np.float32)
    side = pixels.shape[-1]
    if severity >= _FIRST_MUD:
        cover = gaussian(drops, amount)
        cover = resize(np.where(cover < _MUD_EDGE, 0, cover)[None], side)
        return pixels * (1 - cover) + _MUD * cover
    shine = resize((amount * drops * _shine(drops))[None], side)
    return pixels + shine * _WATER


def _shine(drops: Pixels) -> NDArray[np.float64]:
    """Return how bright drops ``(S, S)`` are, 0 to 1: more at the rim, and where the light from above left meets it."""
    depth = ndimage.distance_transform_edt(np.pad(drops, 1, mode="edge"))[1:-1, 1:-1]
    slope = ndimage.sobel(gaussian(drops, 1.5), 0) + ndimage.sobel(gaussian(drops, 1.5), 1)
    return (0.35 + 0.4 * np.exp(-depth / 2) + 0.25 * slope).clip(0, 1)
