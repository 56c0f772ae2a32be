"""The clean view: which part of the source it shows, and as what numbers."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing, to_tensor
from moeprobe.inputs.views.base import check_severities


def corners(framing: Framing, width: int, height: int) -> list[list[float]]:
    """Where the frame's upper left and lower right corners lie in the source."""
    to_source = framing.to_source(Image.new("RGB", (width, height)))
    frame = np.array([[0, 0, 1], [framing.size, framing.size, 1]], dtype=np.float64)
    return np.round(geometry.apply(to_source, frame), 9).tolist()


def test_the_whole_image_is_squashed_into_the_frame() -> None:
    assert corners(Framing(32), 100, 60) == [[0, 0], [100, 60]]


def test_the_central_square_is_a_share_of_the_shorter_side() -> None:
    assert corners(Framing(224, crop_fraction=0.875), 512, 256) == [[144, 16], [368, 240]]
    assert corners(Framing(224, crop_fraction=0.5), 256, 512) == [[64, 192], [192, 320]]


def test_a_clean_image_of_the_frames_size_is_its_bytes_over_255() -> None:
    values = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    sample = Framing(8).clean(Image.fromarray(values))
    assert torch.equal(sample.pixels, torch.from_numpy(values.transpose(2, 0, 1).copy()).float() / 255)
    np.testing.assert_array_equal(sample.to_source, np.eye(3))


def test_a_clean_view_that_was_written_into_is_made_again() -> None:
    """A view of a plug-in may, and is given the image once per draw."""
    image, framing = Image.new("RGB", (8, 8), (255, 0, 51)), Framing(4)
    expected = framing.clean(image).pixels.clone()
    written = framing.clean(image)
    written.pixels.zero_()
    written.to_source[:] = 0
    again = framing.clean(image)
    assert torch.equal(again.pixels, expected)
    np.testing.assert_array_equal(again.to_source, framing.to_source(image))


def test_a_framing_travels_without_the_last_image() -> None:
    framing = Framing(4)
    empty = pickle.dumps(framing)
    framing.clean(Image.new("RGB", (800, 800)))
    assert pickle.dumps(framing) == empty and pickle.loads(empty) == framing


def test_channels_come_first_and_rows_before_columns() -> None:
    image = Image.new("RGB", (3, 2))
    image.putpixel((2, 1), (255, 0, 51))
    pixels = to_tensor(image)
    assert pixels.shape == (3, 2, 3)
    assert pixels[:, 1, 2].tolist() == pytest.approx([1.0, 0.0, 0.2])
    assert pixels.sum() == pixels[:, 1, 2].sum()


@pytest.mark.parametrize("wrong", [-0.5, 2.5, float("nan"), float("inf")])
def test_a_severity_out_of_range_names_the_range(wrong: float) -> None:
    check_severities([0, 1, 2], low=0, high=2, what="The severity")
    with pytest.raises(UserError, match=f"The severity must be between 0 and 2; got {wrong}"):
        check_severities([1, wrong], low=0, high=2, what="The severity")


def test_an_open_range_says_so() -> None:
    check_severities([1e6], low=0, high=float("inf"), what="It")
    with pytest.raises(UserError, match="at least 0; got -1"):
        check_severities([-1], low=0, high=float("inf"), what="It")
