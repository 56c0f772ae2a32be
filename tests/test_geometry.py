"""Patch correspondence against exact loops, its laws, and the released program's answers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moeprobe import geometry
from moeprobe.geometry import Map, PatchGrid
from tests.golden import oracle

quick = settings(deadline=None, derandomize=True, max_examples=60)
Exact = list[list[Fraction]]  # the two upper rows of a map


# --- An exact, slow reference: plain Python, rational numbers, one patch at a time.


def multiply(a: Exact, b: Exact) -> Exact:
    full = [*b, [Fraction(0), Fraction(0), Fraction(1)]]
    last = [Fraction(0), Fraction(0), Fraction(1)]
    return [[sum((row[k] * full[k][j] for k in range(3)), last[0]) for j in range(3)] for row in a]


def determinant(m: Exact) -> Fraction:
    return m[0][0] * m[1][1] - m[0][1] * m[1][0]


def inverse(m: Exact) -> Exact:
    (a, b, c), (d, e, f) = m
    det = determinant(m)
    return [[e / det, -b / det, (b * f - e * c) / det], [-d / det, a / det, (d * c - a * f) / det]]


def act(m: Exact, x: Fraction, y: Fraction) -> tuple[Fraction, Fraction]:
    return m[0][0] * x + m[0][1] * y + m[0][2], m[1][0] * x + m[1][1] * y + m[1][2]


def exact(matrix: Map) -> Exact:
    return [[Fraction(float(value)) for value in row] for row in matrix[:2]]


def slow_partners(first: Exact, second: Exact, grid: PatchGrid, width: int, height: int) -> list[int]:
    """The rule as written: a centre of view 1, its place in the source, the cell of view 2 that holds it."""
    back, partners = inverse(second), []
    for patch in range(grid.num_patches):
        row, column = divmod(patch, grid.columns)
        half = Fraction(grid.patch_size, 2)
        x, y = act(first, column * grid.patch_size + half, row * grid.patch_size + half)
        u, v = act(back, x, y)
        inside_source = 0 <= x < width and 0 <= y < height
        inside_frame = 0 <= u < grid.columns * grid.patch_size and 0 <= v < grid.rows * grid.patch_size
        cell = math.floor(v / grid.patch_size) * grid.columns + math.floor(u / grid.patch_size)
        partners.append(cell if inside_source and inside_frame else -1)
    return partners


def slow_correspondence(
    reference: Exact, view: Exact, grid: PatchGrid, width: int, height: int
) -> tuple[list[int], list[int]]:
    if abs(determinant(view)) < abs(determinant(reference)):
        partners = slow_partners(view, reference, grid, width, height)
        return partners, [patch if p >= 0 else -1 for patch, p in enumerate(partners)]
    partners = slow_partners(reference, view, grid, width, height)
    return [patch if p >= 0 else -1 for patch, p in enumerate(partners)], partners


def quick_correspondence(
    reference: Map, view: Map, grid: PatchGrid, width: int, height: int
) -> tuple[list[int], list[int]]:
    source_size = np.array([[width, height]], dtype=np.float64)
    pairs = geometry.correspond(reference[None], view[None], grid=grid, source_size=source_size)
    return pairs.reference[0].tolist(), pairs.view[0].tolist()


# --- Views with rational maps, as the package makes them and exactly.

PATCH, SIDE = 8, 6
SIZE = PATCH * SIDE
GRID = PatchGrid(rows=SIDE, columns=SIDE, patch_size=PATCH)
WIDTH, HEIGHT = 70, 50


@st.composite
def rational_views(draw: st.DrawFn) -> tuple[Map, Exact]:
    """A crop (which may hang over the source's border), mirrored or not, turned by quarter turns."""
    left, top = draw(st.integers(-20, 50)), draw(st.integers(-20, 40))
    width, height = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    flip, turns = draw(st.booleans()), draw(st.integers(0, 3))
    turn = geometry.about(geometry.rotation(90 * turns), SIZE / 2, SIZE / 2)
    quick_map = geometry.crop(left, top, width, height, SIZE, flip=flip) @ turn

    one, none, size = Fraction(1), Fraction(0), Fraction(SIZE)
    slow: Exact = [
        [Fraction(width, SIZE), none, Fraction(left)],
        [none, Fraction(height, SIZE), Fraction(top)],
    ]
    if flip:
        slow = multiply(slow, [[-one, none, size], [none, one, none]])
    for _ in range(turns):
        slow = multiply(slow, [[none, -one, size], [one, none, none]])
    return quick_map, slow


@st.composite
def affine_maps(draw: st.DrawFn) -> Map:
    """Any affine view that does not flatten the picture."""

    def number(low: float, high: float) -> float:
        return draw(st.floats(low, high, allow_subnormal=False))

    return (
        geometry.translation(number(-40, 40), number(-40, 40))
        @ geometry.rotation(number(-180, 180))
        @ geometry.shearing(number(-0.6, 0.6), number(-0.6, 0.6))
        @ geometry.scaling(number(0.3, 3), number(0.3, 3))
    )


def near_border(reference: Map, view: Map) -> bool:
    """Whether rounding could decide about any patch: such inputs belong to the rational tests."""
    for first, second in ((reference, view), (view, reference)):
        source = geometry.apply(first, GRID.centres())
        target = geometry.apply(np.linalg.inv(second) @ first, GRID.centres()) / PATCH
        if (np.abs(target - np.round(target)) < 1e-6).any():
            return True
        if (np.abs(source[:, None] - [[0, 0], [WIDTH, HEIGHT]]) < 1e-6).any():
            return True
    areas = geometry.source_area(reference), geometry.source_area(view)
    return bool(abs(areas[0] - areas[1]) < 1e-6)


# --- Maps.


@quick
@given(affine_maps())
def test_inverse_undoes_a_map(matrix: Map) -> None:
    points = GRID.centres()
    there = geometry.apply(matrix, points)
    back = geometry.apply(geometry.inverse(matrix), np.column_stack([there, np.ones(len(there))]))
    np.testing.assert_allclose(back, points[:, :2], atol=1e-9)


@quick
@given(affine_maps(), affine_maps())
def test_a_product_acts_from_the_right(first: Map, second: Map) -> None:
    points = GRID.centres()
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
        (geometry.about(geometry.rotation(180), 4, 4), (5, 3)),
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


def test_centres_are_row_major_and_half_a_patch_in() -> None:
    centres = PatchGrid(rows=2, columns=3, patch_size=4).centres()
    assert centres[:, :2].tolist() == [[2, 2], [6, 2], [10, 2], [2, 6], [6, 6], [10, 6]]


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
    source = geometry.apply(matrix, GRID.centres())
    assume((np.abs(source[:, None] - [[0, 0], [WIDTH, HEIGHT]]) > 1e-6).all())
    on_content = ((source >= 0) & (source < [WIDTH, HEIGHT])).all(-1)
    expected = np.where(on_content, np.arange(GRID.num_patches), -1).tolist()
    assert quick_correspondence(matrix, matrix, GRID, WIDTH, HEIGHT) == (expected, expected)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("flip", [False, True])
def test_quarter_turns_and_mirrors_are_permutations(turns: int, *, flip: bool) -> None:
    clean = geometry.crop(0, 0, WIDTH, HEIGHT, SIZE)
    turn = geometry.about(geometry.rotation(90 * turns), SIZE / 2, SIZE / 2)
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
    """Centres exactly on the source's left border show content, those on its right border do not."""
    shifted = geometry.translation(-PATCH / 2, -PATCH / 2)  # centres at 0, 8, ... 40
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


# --- The released rules.


def slow_released(first: Exact, second: Exact, grid: PatchGrid) -> list[int]:
    """The released rule, centre by centre: round((y - p/2) / p), halves away from zero; outside the grid is -1."""

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
    """A shift by half a patch puts every centre on a border: lower/right, but the outer upper/left edge is outside."""
    still = geometry.identity()[None]
    left, right = geometry.translation(-PATCH / 2, 0)[None], geometry.translation(PATCH / 2, 0)[None]
    small_first = np.array([[1, 2]])
    columns = np.arange(GRID.num_patches) % SIDE
    moved_left = geometry.correspond_released(left, still, grid=GRID, crop_areas=small_first).view[0]
    assert moved_left.tolist() == np.where(columns == 0, -1, np.arange(GRID.num_patches)).tolist()
    moved_right = geometry.correspond_released(right, still, grid=GRID, crop_areas=small_first).view[0]
    assert moved_right.tolist() == np.where(columns == SIDE - 1, -1, np.arange(GRID.num_patches) + 1).tolist()
    # Our own rule calls the upper and the left edge inside: cells are half-open.
    ours = GRID.locate(geometry.apply(left[0], GRID.centres()))
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
    numbers = oracle("prc/correspondence.npz")
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
    numbers = oracle("prc/correspondence.npz")
    expected = numbers[f"corr_{size}_cls{int(class_pair)}"]
    first, second, areas = from_crops(numbers[f"crops_{size}(H,W,oy,ox,h,w,flip,oy,ox,h,w,flip)"], size)
    grid = PatchGrid(rows=size // ORACLE_PATCH, columns=size // ORACLE_PATCH, patch_size=ORACLE_PATCH)
    points = np.stack(
        [geometry.apply(np.linalg.inv(m2) @ m1, grid.centres()) for m1, m2 in zip(first, second, strict=True)]
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
