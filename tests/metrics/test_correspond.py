"""Pairs of patches for a picture, against the rule as written, in rational numbers."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given

from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import Sample
from moeprobe.probes.correspond.pairs import PairedPatches, pair_up
from tests.inputs.exact_geometry import (
    GRID,
    HEIGHT,
    PATCH,
    SIZE,
    WIDTH,
    Exact,
    act,
    affine_maps,
    determinant,
    exact,
    inverse,
    near_border,
    quick,
    slow_partners,
)


def found(reference: Map, view: Map) -> PairedPatches:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.random((2, 3, SIZE, SIZE), dtype=np.float32))
    return pair_up(
        image_id="x",
        names=("one", "two"),
        views=(Sample(pixels[0], reference), Sample(pixels[1], view)),
        source_size=(WIDTH, HEIGHT),
        grid=GRID,
    )


@quick
@given(reference=affine_maps(), view=affine_maps())
def test_partners_and_points_by_the_rule(reference: Map, view: Map) -> None:
    assume(not near_border(reference, view))
    item = found(reference, view)
    maps: list[Exact] = [exact(reference), exact(view)]
    smaller = int(abs(determinant(maps[1])) < abs(determinant(maps[0])))
    first, second = maps[smaller], maps[1 - smaller]
    assert item.names == (("one", "two"), ("two", "one"))[smaller]
    assert item.partner.tolist() == slow_partners(first, second, GRID, WIDTH, HEIGHT)
    back = inverse(second)
    for patch, point in enumerate(item.points):
        row, column = divmod(patch, GRID.columns)
        center = exact(np.array([[column + 0.5], [row + 0.5]]) * PATCH)
        expected = act(back, *act(first, center[0][0], center[1][0]))
        assert point == pytest.approx([float(value) for value in expected], rel=1e-9, abs=1e-6)
    assert set(np.flatnonzero(item.matched[1])) == set(item.partner[item.partner >= 0].tolist())
    assert (item.matched[0] == (item.partner >= 0)).all()


def test_pixels_go_with_their_names() -> None:
    small, large = np.diag([0.5, 0.5, 1.0]), np.eye(3)
    pixels = np.random.default_rng(0).random((2, 3, SIZE, SIZE), dtype=np.float32)
    item = found(large, small)
    assert item.names == ("two", "one")
    np.testing.assert_array_equal(item.pixels[0], pixels[1].transpose(1, 2, 0))
    np.testing.assert_array_equal(item.pixels[1], pixels[0].transpose(1, 2, 0))
    # The small view is the upper left quarter of the large one.
    np.testing.assert_allclose(item.points, GRID.centers()[:, :2] / 2)
