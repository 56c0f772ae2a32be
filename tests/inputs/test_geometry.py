"""Maps, the grid, and our rule of correspondence, against exact arithmetic."""

import numpy as np
import pytest
from hypothesis import assume, given

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map, PatchGrid
from tests.inputs.exact_geometry import (
    GRID,
    HEIGHT,
    PATCH,
    SIDE,
    SIZE,
    WIDTH,
    Exact,
    affine_maps,
    determinant,
    exact,
    near_border,
    quick,
    quick_correspondence,
    rational_views,
    slow_correspondence,
)

# --- Maps.


@quick
@given(affine_maps())
def test_inverse_undoes_a_map(matrix: Map) -> None:
    points = GRID.centers()
    there = geometry.apply(matrix, points)
    back = geometry.apply(geometry.inverse(matrix), np.column_stack([there, np.ones(len(there))]))
    np.testing.assert_allclose(back, points[:, :2], atol=1e-9)


@quick
@given(affine_maps(), affine_maps())
def test_a_product_acts_from_the_right(first: Map, second: Map) -> None:
    points = GRID.centers()
    inner = np.column_stack([geometry.apply(second, points), np.ones(len(points))])
    np.testing.assert_allclose(
        geometry.apply(first @ second, points), geometry.apply(first, inner), atol=1e-9
    )


def test_maps_move_known_points() -> None:
    point = np.array([[3.0, 5.0, 1.0]])
    for matrix, expected in [
        (geometry.identity(), (3, 5)),
        (geometry.translation(2, -1), (5, 4)),
        (geometry.scaling(2, 3), (6, 15)),
        (geometry.rotation(90), (-5, 3)),  # x turns towards y, and y points down
        (geometry.shearing(0.5, 0), (5.5, 5)),
        (geometry.shearing(0, 0.5), (3, 6.5)),
        (geometry.horizontal_flip(10), (7, 5)),
        (geometry.around(geometry.rotation(180), 4, 4), (5, 3)),
        (geometry.crop(10, 20, 50, 30, 100), (10 + 1.5, 20 + 1.5)),  # half and three tenths of a pixel a step
        (geometry.crop(10, 20, 50, 30, 100, flip=True), (10 + 48.5, 20 + 1.5)),
    ]:
        np.testing.assert_allclose(geometry.apply(matrix, point)[0], expected, atol=1e-12)


def test_a_map_may_be_projective() -> None:
    matrix = np.array([[2.0, 0, 0], [0, 4.0, 0], [0, 0, 2.0]])
    np.testing.assert_array_equal(geometry.apply(matrix, np.array([[3.0, 5.0, 1.0]])), [[3.0, 10.0]])


def test_source_area_is_what_a_pixel_covers() -> None:
    maps = np.stack([geometry.crop(3, 4, 32, 16, 16, flip=flip) for flip in (False, True)])
    np.testing.assert_allclose(geometry.source_area(maps), [2.0, 2.0])


# --- The grid.


def test_centers_are_row_major_and_half_a_patch_in() -> None:
    centers = PatchGrid(rows=2, columns=3, patch_size=4).centers()
    assert centers[:, :2].tolist() == [[2, 2], [6, 2], [10, 2], [2, 6], [6, 6], [10, 6]]


def test_cells_are_half_open() -> None:
    grid = PatchGrid(rows=2, columns=3, patch_size=4)
    points = np.array(
        [[0, 0], [3.999, 0], [4, 0], [11.999, 7.999], [12, 0], [0, 8], [-0.001, 0], [0, -0.001]]
    )
    assert grid.locate(points).tolist() == [0, 0, 1, 5, -1, -1, -1, -1]


def test_a_border_missed_by_rounding_is_hit() -> None:
    grid = PatchGrid(rows=2, columns=3, patch_size=4)
    points = np.array([[4 - 1e-12, 4 - 1e-12], [-1e-12, 0], [12 - 1e-12, 0]])
    assert grid.locate(points).tolist() == [4, 0, -1]


def test_a_point_that_is_no_number_lies_nowhere() -> None:
    assert GRID.locate(np.array([[np.nan, 1.0], [np.inf, 1.0]])).tolist() == [-1, -1]


# --- Correspondence.


@quick
@given(rational_views(), rational_views())
def test_correspondence_is_exact_on_rational_views(one: tuple[Map, Exact], two: tuple[Map, Exact]) -> None:
    expected = slow_correspondence(one[1], two[1], GRID, WIDTH, HEIGHT)
    assert quick_correspondence(one[0], two[0], GRID, WIDTH, HEIGHT) == expected


@quick
@given(affine_maps(), affine_maps())
def test_correspondence_is_the_slow_loop_on_affine_views(one: Map, two: Map) -> None:
    assume(not near_border(one, two))
    expected = slow_correspondence(exact(one), exact(two), GRID, WIDTH, HEIGHT)
    assert quick_correspondence(one, two, GRID, WIDTH, HEIGHT) == expected


def test_images_of_a_batch_are_independent() -> None:
    rng = np.random.default_rng(0)
    boxes = rng.uniform([0, 0, 10, 10], [20, 20, 50, 50], (20, 4))
    maps = np.stack([geometry.crop(left, top, width, height, SIZE) for left, top, width, height in boxes])
    sizes = rng.uniform(30, 60, (10, 2))
    batch = geometry.correspond(maps[:10], maps[10:], grid=GRID, source_size=sizes)
    for i in range(10):
        alone = geometry.correspond(
            maps[i : i + 1], maps[10 + i : 11 + i], grid=GRID, source_size=sizes[i : i + 1]
        )
        assert batch.reference[i].tolist() == alone.reference[0].tolist()
        assert batch.view[i].tolist() == alone.view[0].tolist()
    assert 0 < batch.valid.mean() < 1


def test_no_images_no_pairs() -> None:
    none = np.zeros((0, 3, 3))
    for pairs in (
        geometry.correspond(none, none, grid=GRID, source_size=np.zeros((0, 2))),
        geometry.correspond_released(none, none, grid=GRID),
    ):
        assert pairs.reference.shape == pairs.view.shape == (0, GRID.num_patches)


@quick
@given(affine_maps())
def test_a_view_corresponds_to_itself_patch_by_patch_on_content(matrix: Map) -> None:
    source = geometry.apply(matrix, GRID.centers())
    assume((np.abs(source[:, None] - [[0, 0], [WIDTH, HEIGHT]]) > 1e-6).all())
    on_content = ((source >= 0) & (source < [WIDTH, HEIGHT])).all(-1)
    expected = np.where(on_content, np.arange(GRID.num_patches), -1).tolist()
    assert quick_correspondence(matrix, matrix, GRID, WIDTH, HEIGHT) == (expected, expected)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("flip", [False, True])
def test_quarter_turns_and_mirrors_are_permutations(turns: int, *, flip: bool) -> None:
    clean = geometry.crop(0, 0, WIDTH, HEIGHT, SIZE)
    turn = geometry.around(geometry.rotation(90 * turns), SIZE / 2, SIZE / 2)
    view = clean @ turn @ (geometry.horizontal_flip(SIZE) if flip else geometry.identity())
    # The same motion of an array of patch numbers. Turning *to_source* by +90 degrees shows at the right edge of the
    # view's upper row what lies at the lower right: NumPy's counter-clockwise rot90.
    shown = np.rot90(np.arange(GRID.num_patches).reshape(SIDE, SIDE), k=turns)
    shown = shown[:, ::-1] if flip else shown
    reference, partner = quick_correspondence(clean, view, GRID, WIDTH, HEIGHT)
    assert reference == list(range(GRID.num_patches))
    assert shown.ravel()[partner].tolist() == reference


def test_padding_has_no_partner() -> None:
    whole = geometry.crop(0, 0, SIZE, SIZE, SIZE)
    shifted = geometry.translation(-2 * PATCH, 0)  # two columns of padding, seen by both views
    reference, view = quick_correspondence(shifted, shifted, GRID, SIZE, SIZE)
    columns = np.arange(GRID.num_patches) % SIDE
    assert (np.array(view)[columns < 2] == -1).all()
    assert (np.array(view)[columns >= 2] == np.arange(GRID.num_patches)[columns >= 2]).all()
    assert reference == view
    # The released rules do not ask for content: every patch of a view is its own partner.
    released = geometry.correspond_released(shifted[None], shifted[None], grid=GRID)
    assert released.view[0].tolist() == list(range(GRID.num_patches))
    assert quick_correspondence(whole, shifted, GRID, SIZE, SIZE)[1].count(-1) == 2 * SIDE


def test_the_source_is_half_open_too() -> None:
    """Centers exactly on the source's left border show content, those on its right border do not."""
    shifted = geometry.translation(-PATCH / 2, -PATCH / 2)  # centers at 0, 8, ... 40
    reference, _ = quick_correspondence(shifted, shifted, GRID, (SIDE - 1) * PATCH, (SIDE - 2) * PATCH)
    expected = [
        patch if patch % SIDE < SIDE - 1 and patch < SIDE * (SIDE - 2) else -1 for patch in range(SIDE**2)
    ]
    assert reference == expected


def test_the_smaller_view_is_view_1_and_the_reference_on_a_tie() -> None:
    small, large = geometry.crop(5, 5, 20, 20, SIZE), geometry.crop(0, 0, 40, 40, SIZE)
    tall = geometry.crop(0, 0, 10, 40, SIZE)  # of the small one's area
    references, views = np.stack([small, large, small, tall]), np.stack([large, small, tall, small])
    pairs = geometry.correspond(references, views, grid=GRID, source_size=np.full((4, 2), 64.0))
    assert pairs.view_first.tolist() == [False, True, False, False]
    slots = np.arange(GRID.num_patches)
    for i, first in enumerate([pairs.reference, pairs.view, pairs.reference, pairs.reference]):
        assert set(first[i]) <= {*slots, -1} and (first[i][pairs.valid[i]] == slots[pairs.valid[i]]).all()
    # Equal but for rounding is equal.
    rounded = geometry.crop(0, 0, 20 * (1 + 1e-14), 20, SIZE)
    assert geometry.source_area(rounded) > geometry.source_area(small)
    even = geometry.correspond(rounded[None], small[None], grid=GRID, source_size=np.full((1, 2), 64.0))
    assert not even.view_first[0]


@quick
@given(rational_views(), rational_views())
def test_swapping_the_views_swaps_the_pairs(one: tuple[Map, Exact], two: tuple[Map, Exact]) -> None:
    assume(abs(determinant(one[1])) != abs(determinant(two[1])))
    reference, view = quick_correspondence(one[0], two[0], GRID, WIDTH, HEIGHT)
    assert quick_correspondence(two[0], one[0], GRID, WIDTH, HEIGHT) == (view, reference)
