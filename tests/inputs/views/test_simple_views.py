"""Rotation, brightness and blur: what one step of each does to a picture, by hand."""

import numpy as np
import pytest
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.base import SeverityView
from moeprobe.inputs.views.brightness import Brightness
from moeprobe.inputs.views.gaussian_blur import GaussianBlur
from moeprobe.inputs.views.rotation import Rotation
from moeprobe.runtime.seeds import generator

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8))


def views(view: SeverityView, severities: list[float], image: Image.Image = IMAGE) -> list[np.ndarray]:
    """The pixels at each severity."""
    return [
        sample.pixels.numpy()
        for sample in view.perturb(image, framing=Framing(24), severities=severities, rng=generator(0, "x"))
    ]


def test_a_quarter_turn_is_exact_to_either_side() -> None:
    clean = np.asarray(IMAGE, dtype=np.float32).transpose(2, 0, 1) / 255
    seen = set()
    for draw in range(20):
        (turned,) = Rotation().perturb(
            IMAGE, framing=Framing(24), severities=[90], rng=generator(0, "turn", draw=draw)
        )
        for quarter in (1, 3):
            if np.abs(turned.pixels.numpy() - np.rot90(clean, quarter, axes=(1, 2))).max() < 0.02:
                seen.add(quarter)
        np.testing.assert_allclose(
            geometry.apply(turned.to_source, np.array([[12.0, 12.0, 1.0]])), [[12, 12]]
        )
    assert seen == {1, 3}


def test_brightness_adds_or_takes_a_constant_and_clips() -> None:
    clean = views(Brightness(), [0.0])[0]
    signs = set()
    for draw in range(20):
        (changed,) = Brightness().perturb(
            IMAGE, framing=Framing(24), severities=[0.3], rng=generator(0, "light", draw=draw)
        )
        for sign in (1, -1):
            if np.allclose(changed.pixels.numpy(), (clean + sign * 0.3).clip(0, 1), atol=1e-6):
                signs.add(sign)
    assert signs == {1, -1}


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur_of_a_point_is_a_gaussian(sigma: float) -> None:
    point = np.zeros((25, 25, 3), dtype=np.uint8)
    point[12, 12] = 255
    (blurred,) = GaussianBlur().perturb(
        Image.fromarray(point), framing=Framing(25), severities=[sigma], rng=generator(0, "x")
    )
    kernel = np.exp(-((np.arange(25) - 12.0) ** 2) / (2 * sigma**2))
    expected = np.outer(kernel, kernel) / kernel.sum() ** 2
    np.testing.assert_allclose(blurred.pixels.numpy()[0], expected, atol=2e-3)
