"""Random crops: where they lie, how large they are, and when they are mirrored."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.crops import ASPECT, CropPair, draw_box
from moeprobe.inputs.views.inception_crop import InceptionCrop
from moeprobe.inputs.views.prc_crops import PrcCrops
from moeprobe.inputs.views.random_crop import RandomCrop
from moeprobe.runtime.seeds import generator

FRAMING = Framing(32)
DRAWS = 2000


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.integers(1, 900),
    st.integers(1, 900),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    st.integers(0, 2**32 - 1),
)
def test_a_box_lies_inside_and_keeps_its_promises(
    width: int, height: int, ends: tuple[float, float], seed: int
) -> None:
    low, high = sorted(ends)
    left, top, box_width, box_height = draw_box(
        width, height, area=(low, high), aspect=ASPECT, rng=np.random.default_rng(seed)
    )
    assert left >= 0 and top >= 0
    assert left + box_width <= width * (1 + 1e-12) and top + box_height <= height * (1 + 1e-12)
    share = box_width * box_height / (width * height)
    assert low * (1 - 1e-9) <= share <= high * (1 + 1e-9)
    ratio = box_width / box_height
    if not ASPECT[0] * (1 - 1e-9) <= ratio <= ASPECT[1] * (1 + 1e-9):
        # No permitted shape holds that area: the box spans the shorter side, no longer than it must be.
        spans = np.isclose(box_height, height) if ratio > 1 else np.isclose(box_width, width)
        assert spans and (width / height > ASPECT[1] or width / height < ASPECT[0])


def boxes(width: int, height: int, area: tuple[float, float]) -> np.ndarray:
    drawn = [
        draw_box(width, height, area=area, aspect=ASPECT, rng=generator(0, "box", draw=i))
        for i in range(DRAWS)
    ]
    return np.array(drawn)


@pytest.mark.parametrize(("width", "height"), [(32, 32), (500, 333), (100, 1000)])
def test_the_area_is_uniform_whatever_the_image(width: int, height: int) -> None:
    shares = np.sort(boxes(width, height, (0.05, 0.7))[:, 2:].prod(-1)) / (width * height)
    expected = np.linspace(0.05, 0.7, DRAWS)
    # Kolmogorov's distance of 2,000 uniform draws exceeds 1.63 / sqrt(2000) = 0.036 once in a hundred times.
    assert np.abs(shares - expected).max() / 0.65 < 0.036


def test_shape_and_place_are_spread_evenly() -> None:
    drawn = boxes(64, 64, (0.1, 0.2))
    shapes = np.log(drawn[:, 2] / drawn[:, 3])
    assert abs(shapes.mean()) < 0.02 and shapes.min() < -0.28 and shapes.max() > 0.28
    for start, length in ((drawn[:, 0], drawn[:, 2]), (drawn[:, 1], drawn[:, 3])):
        places = start / (64 - length)
        assert abs(places.mean() - 0.5) < 0.03 and places.min() < 0.01 and places.max() > 0.99
    numbers = np.column_stack([drawn[:, :2] / (64 - drawn[:, 2:]), drawn[:, 2:].prod(-1), shapes])
    correlations = np.corrcoef(numbers, rowvar=False) - np.eye(4)
    assert np.abs(correlations).max() < 0.08  # 3.5 standard errors: the four numbers are independent


@pytest.mark.parametrize(
    ("view", "first", "second", "flips"),
    [
        (RandomCrop(), (0.3, 0.7), (0.6, 1.0), False),
        (PrcCrops(), (0.05, 0.7), (0.6, 1.0), True),
        (InceptionCrop(), (0.05, 1.0), (0.05, 1.0), True),
    ],
)
def test_the_pairs_are_those_published(
    view: CropPair, first: tuple[float, float], second: tuple[float, float], *, flips: bool
) -> None:
    image = Image.new("RGB", (48, 40))
    pairs = [view.pair(image, framing=FRAMING, rng=generator(0, "pair", draw=i)) for i in range(300)]
    for which, (low, high) in ((0, first), (1, second)):
        maps = np.stack([pair[which].to_source for pair in pairs])
        shares = geometry.source_area(maps) * FRAMING.size**2 / (48 * 40)
        assert low <= shares.min() < low + 0.05 and high - 0.05 < shares.max() <= high + 1e-9
        mirrored = np.linalg.det(maps).mean() < np.abs(np.linalg.det(maps)).mean()
        assert mirrored == flips
        if flips:
            assert 0.4 < (np.linalg.det(maps) < 0).mean() < 0.6
    one, two = (np.array([geometry.source_area(pair[which].to_source) for pair in pairs]) for which in (0, 1))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.15  # the two crops know nothing of each other


def test_mirroring_does_not_change_the_crops() -> None:
    image = Image.new("RGB", (48, 40))
    for i in range(20):
        on, off = (
            PrcCrops(flip=flip).pair(image, framing=FRAMING, rng=generator(0, "pair", draw=i))
            for flip in (True, False)
        )
        for mirrored, plain in zip(on, off, strict=True):
            assert np.linalg.det(plain.to_source) > 0
            np.testing.assert_allclose(np.abs(mirrored.to_source[0, 0]), plain.to_source[0, 0])
            corners = [
                np.sort(geometry.apply(s.to_source, np.array([[0, 0, 1], [32, 32, 1]])), axis=0)
                for s in (mirrored, plain)
            ]
            np.testing.assert_allclose(corners[0], corners[1], atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"first_area": (0.0, 0.5)},
        {"first_area": (0.7, 0.5)},
        {"second_area": (0.5, 1.5)},
        {"aspect": (0.0, 1.0)},
        {"aspect": (2.0, 1.0)},
        {"first_area": (float("nan"), 0.5)},
    ],
)
def test_ranges_that_make_no_sense_are_refused(options: dict[str, tuple[float, float]]) -> None:
    (name, values), *_ = options.items()
    with pytest.raises(UserError, match=f"{name} must be .* got {values[0]}"):
        RandomCrop(**options)  # type: ignore[arg-type]
