"""The one resampling: pixel by pixel against a loop, and free of aliasing."""

import numpy as np
import pytest
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import FILL, render


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def slow_bilinear(image: Image.Image, to_source: Map, size: int) -> np.ndarray:
    """Each view pixel's center, mapped; the four source pixels around it, weighted; gray outside the source."""
    source = np.asarray(image, dtype=np.float64)
    height, width, _ = source.shape
    view = np.empty((size, size, 3))
    for row in range(size):
        for column in range(size):
            x, y = (to_source @ [column + 0.5, row + 0.5, 1.0])[:2]
            if not (0 <= x < width and 0 <= y < height):
                view[row, column] = FILL
                continue
            left, top = np.floor([x - 0.5, y - 0.5])
            view[row, column] = 0
            for i, weight_x in ((left, left + 1.5 - x), (left + 1, x - left - 0.5)):
                for j, weight_y in ((top, top + 1.5 - y), (top + 1, y - top - 0.5)):
                    pixel = source[int(np.clip(j, 0, height - 1)), int(np.clip(i, 0, width - 1))]
                    view[row, column] += weight_x * weight_y * pixel
    return view


@pytest.mark.parametrize(
    "to_source",
    [
        geometry.crop(3.3, 2.1, 17.9, 15.2, 20),
        geometry.crop(3.3, 2.1, 17.9, 15.2, 20, flip=True),
        geometry.crop(0, 0, 20, 20, 20),
        geometry.translation(-4.25, 3.5),
        geometry.translation(-4.25, 3.5) @ geometry.horizontal_flip(20),
        geometry.around(geometry.rotation(90), 10, 10),
        geometry.around(geometry.rotation(23), 10, 10) @ geometry.scaling(0.7, 0.9),
        geometry.crop(2, 1, 18, 20, 20) @ geometry.around(geometry.rotation(180), 10, 10),
    ],
)
def test_render_is_the_slow_loop_where_nothing_shrinks(to_source: Map) -> None:
    image = noise(26, 23)
    found = np.asarray(render(image, to_source, 20), dtype=np.float64)
    np.testing.assert_allclose(found, slow_bilinear(image, to_source, 20), atol=1.01)


def test_a_mirrored_crop_is_the_crop_mirrored() -> None:
    image = noise(40, 30)
    plain, mirrored = (
        np.asarray(render(image, geometry.crop(4.5, 3, 30, 20.25, 16, flip=flip), 16))
        for flip in (False, True)
    )
    np.testing.assert_array_equal(mirrored, plain[:, ::-1])


def test_the_whole_image_at_its_own_size_is_untouched() -> None:
    image = noise(24, 24)
    np.testing.assert_array_equal(render(image, geometry.identity(), 24), image)


@pytest.mark.parametrize(("width", "height"), [(256, 256), (256, 32), (32, 256)])
@pytest.mark.parametrize("degrees", [0.0, 3.0, 45.0])
def test_shrinking_does_not_alias(width: int, height: int, degrees: float) -> None:
    """Stripes finer than the view's pixels become their mean, along either axis, in crops and in warps."""
    stripes = np.zeros((height, width, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    if width < height:
        stripes = np.zeros_like(stripes)
        stripes[::2] = 255
    clean = geometry.crop(0, 0, width, height, 32)
    turned = clean @ geometry.around(geometry.rotation(degrees), 16, 16)
    view = np.asarray(render(Image.fromarray(stripes), turned, 32), dtype=np.float64)[8:24, 8:24]
    assert np.abs(view - 127.5).max() < 20


def test_a_warp_that_hardly_moves_is_close_to_the_crop() -> None:
    """The two ways of resampling meet: a sweep does not jump where it leaves the clean view."""
    smooth = noise(8, 6).resize((96, 72), Image.Resampling.BICUBIC)
    clean = geometry.crop(0, 0, 96, 72, 32)
    nearly = clean @ geometry.around(geometry.rotation(1e-3), 16, 16)
    difference = np.abs(
        np.asarray(render(smooth, clean, 32), float) - np.asarray(render(smooth, nearly, 32), float)
    )
    assert difference.mean() < 1 and difference[1:-1, 1:-1].max() <= 4


def test_padding_is_gray_exactly_where_centers_lie_outside() -> None:
    white = Image.new("RGB", (20, 20), (255, 255, 255))
    view = np.asarray(render(white, geometry.translation(-4.25, 3.5), 20))
    centers = np.arange(20) + 0.5
    outside = (centers[None, :] - 4.25 < 0) | (centers[:, None] + 3.5 >= 20)
    assert (view[outside] == FILL).all() and (view[~outside] == 255).all()


def test_a_view_wholly_outside_is_gray() -> None:
    assert (np.asarray(render(noise(9, 7), geometry.translation(100, 0), 8)) == FILL).all()
