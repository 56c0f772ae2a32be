"""Correspondence in plain Python and rational numbers, one patch at a time, and views with exact maps."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map, PatchGrid

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
    """The rule as written: a center of view 1, its place in the source, the cell of view 2 that holds it."""
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
    turn = geometry.around(geometry.rotation(90 * turns), SIZE / 2, SIZE / 2)
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
        source = geometry.apply(first, GRID.centers())
        target = geometry.apply(np.linalg.inv(second) @ first, GRID.centers()) / PATCH
        if (np.abs(target - np.round(target)) < 1e-6).any():
            return True
        if (np.abs(source[:, None] - [[0, 0], [WIDTH, HEIGHT]]) < 1e-6).any():
            return True
    areas = geometry.source_area(reference), geometry.source_area(view)
    return bool(abs(areas[0] - areas[1]) < 1e-6)
