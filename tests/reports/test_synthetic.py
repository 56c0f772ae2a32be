"""Warped pairs and shifted clips, against pictures whose movement is known."""

import numpy as np
import pytest
from PIL import Image

from reports.scripts.real.synthetic import change, equal_shift, shift, warp


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((128, 96), Image.Resampling.BICUBIC)


def test_a_warp_is_the_second_picture_where_the_first_camera_saw_it(picture: Image.Image) -> None:
    second, first = np.asarray(picture), np.zeros((96, 128, 3), np.uint8)
    flow = np.zeros((96, 128, 2), np.float32)
    # To the left and down by whole pixels; beyond the second picture, and where nothing is known, the first stays.
    flow[..., 0], flow[..., 1] = -3, 2
    flow[40:50, 60:70] = np.nan
    warped = warp(first, second, flow)
    expected = np.zeros_like(first)
    expected[:-2, 3:] = second[2:, :-3]
    expected[40:50, 60:70] = 0
    assert np.array_equal(warped, expected)
    flow[..., 0] = -2.5
    between = warp(first, second, flow)[20, 20]
    assert np.array_equal(between, ((second[22, 17].astype(float) + second[22, 18]) / 2).round())


@pytest.mark.parametrize("step", [0.4, 1.5])
def test_a_shift_that_changes_as_much_is_found(picture: Image.Image, step: float) -> None:
    frames = [shift(picture, number * step) for number in range(4)]
    assert equal_shift(frames) == pytest.approx(step, abs=0.02)
    assert change(frames) > 1
    assert np.array_equal(np.asarray(shift(picture, 3.0))[:, 3:], np.asarray(picture)[:, :-3])
