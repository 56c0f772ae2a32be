"""Corruptions of ImageNet-C, each against a slow formula or a property that it must have."""

import colorsys
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import (
    EXTRA,
    FAMILIES,
    MOVING,
    NAMES,
    STANDARD,
    blur,
    digital,
    noise,
    weather,
)
from moeprobe.inputs.corruptions.resampling import Pixels, displace, smear
from moeprobe.inputs.images import Framing
from moeprobe.inputs.open import open_view
from moeprobe.inputs.views.corruption import Corruption
from moeprobe.runtime.seeds import generator

SIDE = 48
STILL = {
    "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "saturate",
}  # fmt: skip


def picture(side: int = SIDE) -> Image.Image:
    """A colored gradient with a gray disk: edges, flat parts and all hues."""
    y, x = np.mgrid[:side, :side] / side
    values = np.stack([x, y, 1 - x * y], axis=-1) * 0.9 + 0.05
    values[(x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.05] = 0.5
    return Image.fromarray((values * 255).astype(np.uint8))


def pixels_of(image: Image.Image) -> Pixels:
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255


def corrupt(
    kind: str, *severities: float, draw: int = 0, side: int = SIDE, moves: bool = True
) -> list[torch.Tensor]:
    view = Corruption(kind=kind, moves=moves)
    samples = view.perturb(
        picture(side), framing=Framing(side), severities=severities, rng=generator(3, "test", draw=draw)
    )
    return [sample.pixels for sample in samples]


def test_names_are_the_fifteen_and_the_four() -> None:
    assert len(STANDARD) == 15 and len(set(NAMES)) == 19 and FAMILIES.keys() == EXTRA.keys()


def test_the_page_has_the_constants() -> None:
    page = Path(__file__).parents[3] / "docs/concepts/perturbations.md"
    rows = re.findall(r"^\| `(\w+)` \|[^|]+\| ([\d., ]+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [kind for kind, _ in rows] == list(NAMES)
    for kind, numbers in rows:
        module = next(module for module in (noise, blur, weather, digital) if hasattr(module, kind))
        constants = getattr(module, f"_{kind.split('_')[0].upper()}")
        firsts = [entry[0] if isinstance(entry, tuple) else entry for entry in constants]
        assert [float(number) for number in numbers.split(", ")] == firsts, kind


@pytest.mark.parametrize("kind", NAMES)
def test_every_corruption_is_nested_seeded_and_starts_at_the_clean_image(kind: str) -> None:
    clean, *corrupted = corrupt(kind, 0, 1, 2, 3, 4, 5)
    assert torch.equal(clean, torch.from_numpy(pixels_of(picture())))
    for number, pixels in enumerate(corrupted, start=1):
        assert pixels.shape == (3, SIDE, SIDE) and pixels.dtype == torch.float32 and pixels.is_contiguous()
        assert float(pixels.min()) >= 0 and float(pixels.max()) <= 1 and not torch.equal(pixels, clean)
        assert torch.equal(corrupt(kind, number)[0], pixels)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(corrupted))
    assert torch.equal(corrupt(kind, 3, draw=1)[0], corrupted[2]) == (kind in STILL)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("side", [1, 7, 33])
def test_every_corruption_takes_images_of_any_size(kind: str, side: int) -> None:
    for pixels in corrupt(kind, 1, 4, 5, side=side):
        assert pixels.shape == (3, side, side) and bool(torch.isfinite(pixels).all())


@pytest.mark.parametrize("kind", MOVING)
def test_the_control_moves_nothing_by_a_pixel(kind: str) -> None:
    (moved,), (control,) = (corrupt(kind, 5, moves=moves, side=224) for moves in (True, False))
    clean = pixels_of(picture(224))
    # Every value of the control is one of the clean image no further away than a pixel, or three under the blurs.
    reach = 2 * 10 + 1 if kind == "glass_blur" else 3
    low, high = (
        f(clean, size=(1, reach, reach), mode="mirror")
        for f in (ndimage.minimum_filter, ndimage.maximum_filter)
    )
    assert ((control.numpy() >= low - 1e-4) & (control.numpy() <= high + 1e-4)).all()
    distance = [np.abs(pixels.numpy() - clean).mean() for pixels in (moved, control)]
    assert distance[0] > 2 * distance[1] > 0


def test_noise_has_its_published_size() -> None:
    gray = np.full((3, 200, 200), 0.5, np.float32)
    for number, sigma in enumerate((0.08, 0.12, 0.18, 0.26, 0.38), start=1):
        assert noise.gaussian_noise(gray, number, generator(0, "n")).std() == pytest.approx(sigma, rel=0.02)
    for number, count in enumerate((60, 25, 12, 5, 3), start=1):
        shot = noise.shot_noise(gray, number, generator(0, "n"))
        assert shot.var() == pytest.approx(0.5 / count, rel=0.03)
        np.testing.assert_allclose(shot * count, np.round(shot * count), atol=1e-4)
    for number, share in enumerate((0.03, 0.06, 0.09, 0.17, 0.27), start=1):
        hit = noise.impulse_noise(gray, number, generator(0, "n"))
        assert (hit == 0).mean() == pytest.approx(share / 2, rel=0.1)
        assert (hit == 1).mean() == pytest.approx(share / 2, rel=0.1)
        assert ((hit == 0) | (hit == 1) | (hit == 0.5)).all()
    speckle = noise.speckle_noise(gray, 3, generator(0, "n"))
    assert speckle.std() == pytest.approx(0.5 * 0.35, rel=0.02)


def test_colors_are_those_of_hue_saturation_and_value() -> None:
    image = pixels_of(picture(12))
    image[:, 0, :3] = np.array([0.0, 0.4, 1.0])  # black, gray, white
    rng = generator(0, "unused")
    for number, (factor, added, light) in enumerate(
        ((0.3, 0, 0.1), (0.1, 0, 0.2), (2, 0, 0.3), (5, 0.1, 0.4), (20, 0.2, 0.5)), start=1
    ):
        saturated, brighter = (
            function(image, number, rng) for function in (digital.saturate, digital.brightness)
        )
        for row, column in np.ndindex(12, 12):
            hue, saturation, value = colorsys.rgb_to_hsv(*map(float, image[:, row, column]))
            expected = colorsys.hsv_to_rgb(hue, min(saturation * factor + added, 1), value)
            np.testing.assert_allclose(saturated[:, row, column], expected, atol=2e-5)
            expected = colorsys.hsv_to_rgb(hue, saturation, min(value + light, 1))
            np.testing.assert_allclose(brighter[:, row, column], expected, atol=2e-5)


def test_storage_and_contrast() -> None:
    image, rng = picture(40), generator(0, "unused")
    file = io.BytesIO()
    image.save(file, "JPEG", quality=15)
    np.testing.assert_array_equal(
        digital.jpeg_compression(pixels_of(image), 3, rng), pixels_of(Image.open(file))
    )
    boxes = digital.pixelate(pixels_of(image), 5, rng).reshape(3, 10, 4, 10, 4)
    assert np.ptp(boxes, axis=(2, 4)).max() == 0
    means = pixels_of(image).reshape(3, 10, 4, 10, 4).mean((2, 4))
    np.testing.assert_allclose(boxes[:, :, 0, :, 0], means, atol=1.1 / 255)
    flat = digital.contrast(pixels_of(image), 5, rng)
    np.testing.assert_allclose(flat.mean((1, 2)), pixels_of(image).mean((1, 2)), atol=1e-5)
    np.testing.assert_allclose(flat.std((1, 2)), 0.05 * pixels_of(image).std((1, 2)), rtol=1e-3)


def test_a_landscape_is_the_diamond_square_of_a_loop() -> None:
    side, decay = 8, 1.7
    rng, heights, step, reach = generator(1, "land"), np.zeros((side, side)), side, 1.0

    def height(row: int, column: int) -> float:
        return float(heights[row % side, column % side])

    while step > 1:
        half = step // 2
        count = side // step
        draws = [rng.uniform(-reach, reach, (count, count)) for _ in range(3)]
        for i, j in np.ndindex(count, count):
            r, c = i * step + half, j * step + half
            around = (
                height(r - half, c - half),
                height(r - half, c + half),
                height(r + half, c - half),
                height(r + half, c + half),
            )
            heights[r, c] = sum(around) / 4 + draws[0][i, j]
        for i, j in np.ndindex(count, count):
            for number, (r, c) in enumerate(
                ((i * step, j * step + half), (i * step + half, j * step)), start=1
            ):
                around = (height(r - half, c), height(r + half, c), height(r, c - half), height(r, c + half))
                heights[r, c] = sum(around) / 4 + draws[number][i, j]
        step, reach = half, reach / decay**2
    expected = (heights - heights.min()) / np.ptp(heights)
    np.testing.assert_allclose(weather.landscape(side, decay, generator(1, "land")), expected, atol=1e-12)


def test_fog_is_brightest_where_the_image_was() -> None:
    image, rng = pixels_of(picture(64)), generator(2, "fog")
    haze = weather.landscape(64, 1.4, generator(2, "fog"))
    expected = (image + 3 * haze) * image.max() / (image.max() + 3)
    np.testing.assert_allclose(weather.fog(image, 5, rng), expected, atol=1e-5)
    assert weather.fog(np.zeros((3, 64, 64), np.float32), 5, rng).max() == 0


def test_a_smear_is_half_a_gaussian_along_its_line() -> None:
    point = np.zeros((21, 21), np.float32)
    point[10, 10] = 1
    right = smear(point, radius=2, sigma=1.5, angle=0)
    weights = np.exp(-(np.arange(0, 4.5, 0.5) ** 2) / (2 * 1.5**2))
    # Whole places get their weight and half of each neighbor's.
    padded = np.concatenate([[0], weights, [0]])
    taps = (padded[1:-1] + (padded[:-2] + padded[2:]) / 2)[::2]
    np.testing.assert_allclose(right[10, 10:15], taps / weights.sum(), atol=1e-6)
    assert right.sum() == pytest.approx(1, abs=1e-5) and right[10, :9].max() < 1e-6
    down = smear(point, radius=2, sigma=1.5, angle=np.pi / 2)
    np.testing.assert_allclose(down, right.T, atol=1e-6)


def test_a_disk_spreads_a_point_within_its_radius() -> None:
    point = np.zeros((3, 224, 224), np.float32)
    point[:, 112, 112] = 1
    spread = blur.defocus_blur(point, 5, generator(0, "unused"))[0]
    y, x = np.mgrid[:224, :224] - 112
    assert spread.sum() == pytest.approx(1, abs=1e-4)
    assert spread[np.hypot(y, x) > 13].max() < 1e-4
    assert spread[np.hypot(y, x) < 8] == pytest.approx(1 / (np.pi * 100), rel=0.02)


def test_zoom_blur_is_the_mean_of_magnifications() -> None:
    image = pixels_of(picture(40))
    rows, columns = np.mgrid[:40, :40] - 19.5
    factors = np.arange(1, 1.31, 0.03)
    versions = [
        np.stack(
            [
                ndimage.map_coordinates(channel, [19.5 + rows / factor, 19.5 + columns / factor], order=1)
                for channel in image
            ]
        )
        for factor in factors
    ]
    expected = (image + sum(versions)) / (len(factors) + 1)
    np.testing.assert_allclose(blur.zoom_blur(image, 5, generator(0, "unused")), expected, atol=1e-4)


def test_a_displacement_shows_what_is_at_the_offset() -> None:
    image = pixels_of(picture(20))
    offsets = np.zeros((1, 2, 20, 20))
    offsets[0, 0], offsets[0, 1] = 3, -2
    moved = displace(image, offsets, moves=True)[0]
    np.testing.assert_allclose(moved[:, 2:, :-3], image[:, :-2, 3:], atol=1e-5)
    np.testing.assert_allclose(displace(image, offsets, moves=False)[0], image, atol=1e-5)


def test_the_elastic_field_is_a_mirrored_gaussian_blur() -> None:
    field = generator(0, "field").uniform(-1, 1, (2, 50, 50))
    expected = ndimage.gaussian_filter(field, (0, 3, 3), mode="reflect", truncate=8)
    np.testing.assert_allclose(digital.smooth(field, 3), expected, atol=1e-6)


def test_lengths_grow_with_the_image() -> None:
    """A blurred image of twice the side is the blurred image."""
    large, small = (pixels_of(picture(224).resize((side, side), Image.Resampling.BOX)) for side in (224, 112))
    rng = generator(0, "unused")
    for function in (blur.gaussian_blur, blur.defocus_blur):
        halved = function(large, 5, rng).reshape(3, 112, 2, 112, 2).mean((2, 4))
        error = np.abs(halved - function(small, 5, rng)).max()
        assert error < 0.15 * np.abs(small - function(small, 5, rng)).max()


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match=r"There is no corruption 'fogg'. Did you mean 'fog'"):
        open_view("corruption,kind=fogg")
    with pytest.raises(UserError, match="'fog' moves nothing, so it needs no control"):
        open_view("corruption,kind=fog,moves=false")
    with pytest.raises(UserError, match=r"whole number; got 2\.5"):
        corrupt("fog", 2.5)
    with pytest.raises(UserError, match="between 0 and 5; got 6"):
        corrupt("fog", 6)
