"""The released rules of correspondence, against a slow loop and the released program's own answers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map, PatchGrid
from tests.golden import golden
from tests.inputs.exact_geometry import (
    GRID,
    PATCH,
    SIDE,
    SIZE,
    Exact,
    act,
    determinant,
    inverse,
    quick,
    rational_views,
)

# --- The released rules.


def slow_released(first: Exact, second: Exact, grid: PatchGrid) -> list[int]:
    """The released rule, center by center: round((y - p/2) / p), halves away from zero; outside the grid is -1."""

    def nearest(value: Fraction) -> int:
        steps = value / grid.patch_size - Fraction(1, 2)
        return math.floor(steps + Fraction(1, 2)) if steps >= 0 else -math.floor(-steps + Fraction(1, 2))

    back, partners = inverse(second), []
    half = Fraction(grid.patch_size, 2)
    for patch in range(grid.num_patches):
        row, column = divmod(patch, grid.columns)
        x, y = act(back, *act(first, column * grid.patch_size + half, row * grid.patch_size + half))
        down, right = nearest(y), nearest(x)
        inside = 0 <= down < grid.rows and 0 <= right < grid.columns
        partners.append(down * grid.columns + right if inside else -1)
    return partners


@quick
@given(rational_views(), rational_views())
def test_released_rules_are_their_slow_loop(one: tuple[Map, Exact], two: tuple[Map, Exact]) -> None:
    areas = [abs(determinant(one[1])), abs(determinant(two[1]))]
    pairs = geometry.correspond_released(one[0][None], two[0][None], grid=GRID)
    if areas[0] < areas[1]:
        slots, partners, expected = pairs.reference[0], pairs.view[0], slow_released(one[1], two[1], GRID)
    else:
        slots, partners, expected = pairs.view[0], pairs.reference[0], slow_released(two[1], one[1], GRID)
    assert partners.tolist() == expected
    assert slots.tolist() == [patch if p >= 0 else -1 for patch, p in enumerate(expected)]
    assert pairs.view_first[0] == (areas[0] >= areas[1])


def test_released_rules_on_borders() -> None:
    """A shift by half a patch puts every center on a border: lower/right, but the outer upper/left edge is outside."""
    still = geometry.identity()[None]
    left, right = geometry.translation(-PATCH / 2, 0)[None], geometry.translation(PATCH / 2, 0)[None]
    small_first = np.array([[1, 2]])
    columns = np.arange(GRID.num_patches) % SIDE
    moved_left = geometry.correspond_released(left, still, grid=GRID, crop_areas=small_first).view[0]
    assert moved_left.tolist() == np.where(columns == 0, -1, np.arange(GRID.num_patches)).tolist()
    moved_right = geometry.correspond_released(right, still, grid=GRID, crop_areas=small_first).view[0]
    assert moved_right.tolist() == np.where(columns == SIDE - 1, -1, np.arange(GRID.num_patches) + 1).tolist()
    # Our own rule calls the upper and the left edge inside: cells are half-open.
    ours = GRID.locate(geometry.apply(left[0], GRID.centers()))
    assert ours.tolist() == list(range(GRID.num_patches))


def test_released_rules_swap_equal_areas_and_take_the_areas_given() -> None:
    small, large = geometry.crop(5, 5, 20, 20, SIZE)[None], geometry.crop(0, 0, 40, 40, SIZE)[None]

    def view_first(areas: list[list[int]] | None, reference: Map = small, view: Map = large) -> bool:
        given_areas = None if areas is None else np.array(areas)
        pairs = geometry.correspond_released(reference, view, grid=GRID, crop_areas=given_areas)
        return bool(pairs.view_first[0])

    assert not view_first(None) and not view_first([[400, 1600]])
    assert view_first(None, large, small)
    assert view_first([[400, 400]]) and view_first([[1600, 400]])
    assert view_first(None, small, small)


def test_released_pairs_as_token_positions() -> None:
    still = geometry.identity()[None]
    pairs = geometry.correspond_released(
        still, geometry.translation(SIZE / 2, 0)[None], grid=GRID, num_prefix_tokens=1, class_pair=True
    )
    plain = geometry.correspond_released(still, geometry.translation(SIZE / 2, 0)[None], grid=GRID)
    for tokens, patches in ((pairs.reference, plain.reference), (pairs.view, plain.view)):
        assert tokens[0, :-1].tolist() == [patch + 1 if patch >= 0 else -1 for patch in patches[0]]
        assert tokens[0, -1] == 0
    assert (plain.view == -1).any() and pairs.valid[0, -1]


# --- The released program's own answers.

ORACLE_PATCH = 32


def from_crops(table: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Our maps of image 1 and image 2, and the crops' areas."""
    maps = [
        [
            geometry.crop(left, top, width, height, size, flip=bool(flip))
            for top, left, height, width, flip in rows
        ]
        for rows in (table[:, 2:7], table[:, 7:12])
    ]
    return (
        np.array(maps[0]),
        np.array(maps[1]),
        np.stack([table[:, 4] * table[:, 5], table[:, 9] * table[:, 10]], -1),
    )


@pytest.mark.golden
@pytest.mark.parametrize("size", [384, 224, 128])
def test_our_crops_compose_to_the_released_map(size: int) -> None:
    numbers = golden("prc/correspondence.npz")
    first, second, _ = from_crops(numbers[f"crops_{size}(H,W,oy,ox,h,w,flip,oy,ox,h,w,flip)"], size)
    swap = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])  # theirs acts on (y, x, 1)
    ours = swap @ (np.linalg.inv(second) @ first) @ swap
    np.testing.assert_allclose(ours, numbers[f"R_{size}"], rtol=1e-5, atol=1e-4)
    flips = numbers[f"crops_{size}(H,W,oy,ox,h,w,flip,oy,ox,h,w,flip)"][:, [6, 11]]
    assert flips.any() and not flips.all()


@pytest.mark.golden
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("class_pair", [False, True])
@pytest.mark.parametrize("size", [384, 224, 128])
def test_released_correspondence(size: int, *, class_pair: bool, swapped: bool) -> None:
    """The same pairs, from our maps of the crops and from the released matrices, in either order of the views."""
    numbers = golden("prc/correspondence.npz")
    expected = numbers[f"corr_{size}_cls{int(class_pair)}"]
    first, second, areas = from_crops(numbers[f"crops_{size}(H,W,oy,ox,h,w,flip,oy,ox,h,w,flip)"], size)
    grid = PatchGrid(rows=size // ORACLE_PATCH, columns=size // ORACLE_PATCH, patch_size=ORACLE_PATCH)
    points = np.stack(
        [geometry.apply(np.linalg.inv(m2) @ m1, grid.centers()) for m1, m2 in zip(first, second, strict=True)]
    )
    # The program worked in float32: where a point lies on a border to that precision, rounding decided.
    cells = points / ORACLE_PATCH
    on_border = (np.abs(cells - np.round(cells)) < 1e-5).any(-1)
    assert on_border.sum() <= 0.02 * on_border.size
    certain = np.pad(~on_border, ((0, 0), (0, int(class_pair))), constant_values=True)

    swap = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    released = swap @ numbers[f"R_{size}"].astype(np.float64) @ swap
    nothing = np.broadcast_to(np.eye(3), released.shape)
    for one, two in ((first, second), (released, nothing)):
        if swapped:
            pairs = geometry.correspond_released(
                two, one, grid=grid, crop_areas=areas[:, ::-1], num_prefix_tokens=1, class_pair=class_pair
            )
            found = np.stack([pairs.view, pairs.reference], -1)
        else:
            pairs = geometry.correspond_released(
                one, two, grid=grid, crop_areas=areas, num_prefix_tokens=1, class_pair=class_pair
            )
            found = np.stack([pairs.reference, pairs.view], -1)
        np.testing.assert_array_equal(found[certain], expected[certain])
        if class_pair:
            assert (found[:, -1] == 0).all()
    assert (expected[certain] >= 0).any()
