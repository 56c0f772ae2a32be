"""The random affine map: its ranges, and that a sweep is one movement growing."""

import numpy as np
import pytest
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.affine import Affine
from moeprobe.runtime.seeds import generator

SIZE = 32
IMAGE = Image.new("RGB", (SIZE, SIZE))


def maps(view: Affine, severities: list[float], draws: int = 200) -> np.ndarray:
    """The maps ``(draws, severities, 3, 3)`` for an image as large as the frame, whose clean map is the identity."""
    return np.array(
        [
            [
                s.to_source
                for s in view.perturb(
                    IMAGE, framing=Framing(SIZE), severities=severities, rng=generator(0, "affine", draw=i)
                )
            ]
            for i in range(draws)
        ]
    )


def test_rotation_alone() -> None:
    found = maps(Affine(shear=0, translation=0, scale=1), [0.25, 0.5, 1.0])
    angles = np.degrees(np.arctan2(found[:, :, 1, 0], found[:, :, 0, 0]))
    assert -30 <= angles.min() < -28 and 28 < angles.max() <= 30
    np.testing.assert_allclose(angles[:, 0] * 4, angles[:, 2])
    np.testing.assert_allclose(angles[:, 1] * 2, angles[:, 2])
    center = geometry.apply(found, np.array([[SIZE / 2, SIZE / 2, 1.0]]))
    np.testing.assert_allclose(center, np.full_like(center, SIZE / 2))


def test_shear_alone() -> None:
    found = maps(Affine(rotation=0, translation=0, scale=1), [0.5, 1.0])
    shears = found[:, :, 0, 1]
    assert -0.3 <= shears.min() < -0.28 and 0.28 < shears.max() <= 0.3
    np.testing.assert_allclose(shears[:, 0] * 2, shears[:, 1])
    np.testing.assert_allclose(found[:, :, 1, 0], 0, atol=1e-15)


def test_scale_alone() -> None:
    found = maps(Affine(rotation=0, shear=0, translation=0), [0.5, 1.0])
    scales = found[:, :, 0, 0]
    assert 0.8 <= scales.min() < 0.82 and 1.22 < scales.max() <= 1.25
    np.testing.assert_allclose(scales[:, 0] ** 2, scales[:, 1])
    assert abs(np.log(scales[:, 1]).mean()) < 0.03  # as often larger as smaller


def test_translation_alone() -> None:
    found = maps(Affine(rotation=0, shear=0, scale=1), [0.5, 1.0])
    shifts = found[:, :, :2, 2] / SIZE
    assert -0.2 <= shifts.min() < -0.19 and 0.19 < shifts.max() <= 0.2
    np.testing.assert_allclose(shifts[:, 0] * 2, shifts[:, 1])
    assert abs((shifts[:, 1, 0] * shifts[:, 1, 1]).mean()) < 0.2**2 / 5  # either axis on its own


def test_it_acts_about_the_center_of_the_clean_view() -> None:
    """In view pixels, so that a squashed picture is turned as it is seen."""
    image = Image.new("RGB", (100, 60))
    for framing in (Framing(SIZE), Framing(SIZE, crop_fraction=0.5)):
        still, turned = Affine(translation=0, shear=0, scale=1).perturb(
            image, framing=framing, severities=[0, 1], rng=generator(0, "affine")
        )
        center = np.array([SIZE / 2, SIZE / 2, 1.0])
        np.testing.assert_allclose(turned.to_source @ center, [50, 30, 1])
        movement = geometry.inverse(still.to_source) @ turned.to_source
        np.testing.assert_allclose(movement[:2, :2] @ movement[:2, :2].T, np.eye(2), atol=1e-12)


def test_it_never_mirrors() -> None:
    assert (np.linalg.det(maps(Affine(), [0.3, 1.0])) > 0).all()


@pytest.mark.parametrize("severity", [-0.1, 1.1, float("nan")])
def test_a_severity_out_of_range_is_refused(severity: float) -> None:
    with pytest.raises(UserError, match=rf"between 0 and 1; got {severity}"):
        Affine().perturb(IMAGE, framing=Framing(SIZE), severities=[0.5, severity], rng=generator(0, "x"))


def test_a_scale_below_1_is_refused() -> None:
    with pytest.raises(UserError, match=r"got 0\.5"):
        Affine(scale=0.5)
