import hashlib
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw

from moeprobe.errors import UserError
from moeprobe.inputs.data.shapes import OUTLINES, Shapes


def _digest(data: Shapes, index: int) -> str:
    example = data.example(index)
    assert example.mask is not None
    return hashlib.sha256(example.image.tobytes() + example.mask.tobytes()).hexdigest()


def test_another_process_draws_the_same_bytes() -> None:
    program = (
        "from moeprobe.inputs.data.shapes import Shapes; from tests.inputs.data.test_shapes import _digest; "
        "data = Shapes(split='val'); print([_digest(data, index) for index in (999, 3)])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    data = Shapes(split="val")
    assert result.stdout.strip() == str([_digest(data, 999), _digest(data, 3)])


def test_another_resolution_shows_the_same_scene() -> None:
    small, large = Shapes(split="test", location="48"), Shapes(split="test", location="192")
    for index in range(20):
        one, other = small.example(index), large.example(index)
        assert other.image.size == (192, 192)
        assert one.label == other.label
        reduced = np.asarray(other.image.reduce(4)).astype(float)
        assert (
            np.abs(reduced - np.asarray(one.image)).mean() < 6
        )  # grain is resampled; other scenes differ by 80
        assert other.mask is not None
        share = other.mask.reshape(48, 4, 48, 4).mean(axis=(1, 3))
        assert one.mask is not None
        assert np.mean((share >= 0.5) != one.mask) < 0.02


def test_the_mask_is_the_object() -> None:
    """The colors inside and outside differ; across the mask's edge they change, one pixel off it they do not."""
    data = Shapes(split="train")
    for index in range(100):
        example = data.example(index)
        mask = example.mask
        assert mask is not None
        assert 0.02 < mask.mean() < 0.6
        assert not mask[[0, -1]].all()
        pixels = np.asarray(example.image).astype(float) / 255
        inside, outside = pixels[mask].mean(axis=0), pixels[~mask].mean(axis=0)
        assert np.linalg.norm(inside - outside) > 0.25
    jumps = {shift: _edge_jump(data, shift) for shift in (-3, 0, 3)}
    assert jumps[0] > 2.5 * max(jumps[-3], jumps[3])


def _edge_jump(data: Shapes, shift: int) -> float:
    """Mean color difference across the mask's vertical edges, moved by ``shift`` pixels to the right."""
    jumps = []
    for index in range(60):
        example = data.example(index)
        assert example.mask is not None
        pixels = np.asarray(example.image).astype(float) / 255
        y, x = np.nonzero(example.mask[:, 1:] != example.mask[:, :-1])
        x = x + shift
        kept = (x >= 1) & (x + 2 < 64)
        # Two pixels apart: the pixel in between may be half object, half ground.
        jumps.append(np.abs(pixels[y[kept], x[kept] + 2] - pixels[y[kept], x[kept] - 1]).mean())
    return float(np.mean(jumps))


def test_classes_are_balanced_and_the_label_is_the_outline() -> None:
    data = Shapes(split="test")
    assert data.class_names == tuple(OUTLINES)
    labels = Counter(data.example(index).label for index in range(200))
    assert labels == dict.fromkeys(range(10), 20)
    # Share of the circle around it that each object fills: area / (pi radius**2), from geometry.
    fill = {"circle": 1.0, "square": 2 / np.pi, "triangle": 3 * np.sqrt(3) / (4 * np.pi), "ring": 1 - 0.6**2}
    fill["hexagon"] = 3 * np.sqrt(3) / (2 * np.pi)
    large = Shapes(split="test", location="256")
    for index in range(30):
        example = large.example(index)
        assert example.label is not None
        name = tuple(OUTLINES)[example.label]
        if name in fill:
            assert example.mask is not None
            assert _fill(example.mask) == pytest.approx(fill[name], rel=0.04)


def _fill(mask: np.ndarray) -> float:
    """Area over that of the circle around the center of mass (which is the center, for these classes)."""
    points = np.argwhere(mask)
    radius = np.linalg.norm(points - points.mean(axis=0), axis=1).max() + 0.5
    return mask.sum() / (np.pi * radius**2)


@pytest.mark.parametrize("name", OUTLINES)
def test_each_class_is_its_own_mirror_image(name: str) -> None:
    """Some turn lays the mirrored outline on the outline: so a flip never changes the class."""
    assert Shapes.flippable
    assert max(np.linalg.norm(polygon, axis=1).max() for polygon in OUTLINES[name]) <= 1 + 1e-9

    def draw(angle: float, mirror: float) -> np.ndarray:
        canvas = Image.new("1", (100, 100))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        for number, polygon in enumerate(OUTLINES[name]):
            corners = 50 + 45 * (polygon * (mirror, 1)) @ turn.T
            ImageDraw.Draw(canvas).polygon([tuple(corner) for corner in corners], fill=1 - number % 2)
        return np.asarray(canvas)

    original = draw(0, 1)
    agreement = max(
        (original & draw(angle, -1)).sum() / (original | draw(angle, -1)).sum()
        for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False)
    )
    assert agreement > 0.93


@pytest.mark.slow
@pytest.mark.promise
def test_color_position_and_size_do_not_tell_the_class() -> None:
    """Class means of what is drawn alike for all differ by no more than chance would have it."""
    data = Shapes(split="train", location="16")
    features: list[list[np.ndarray]] = [[] for _ in range(10)]
    for index in range(2000):
        example = data.example(index)
        assert example.mask is not None
        assert example.label is not None
        ground = np.asarray(example.image)[~example.mask].mean(axis=0) / 255
        features[example.label].append(ground)
    values = np.array(features)  # (class, image, color)
    error = values.std() / np.sqrt(values.shape[1])
    assert np.abs(values.mean(axis=1) - values.mean(axis=(0, 1))).max() < 4 * error


@pytest.mark.parametrize("location", ["15", "2000", "sixty", "-64", "64.0", ""])
def test_a_resolution_out_of_range(location: str) -> None:
    with pytest.raises(UserError, match="resolution from 16 to 1024"):
        Shapes(split="test", location=location)


def test_a_scene_is_drawn_in_a_few_milliseconds() -> None:
    data = Shapes(split="train")
    times = []
    for index in range(50):
        start = time.process_time()
        data.example(index)
        times.append(time.process_time() - start)
    assert np.median(times) < 5e-3
