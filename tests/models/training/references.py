"""Slow NumPy float64 references of the training objectives: loops over images, patches and experts.

Axes: B images, T tokens, E experts. Rows of gates ``(2B, T, E)`` are image 0 view 1, image 0 view 2, image 1 view 1.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moeprobe.models.training.objectives.base import BatchViews

Array = NDArray[np.float64]
EPSILON = 1e-7


def pairs(
    views: BatchViews, *, released: bool = False, class_pair: bool = False
) -> Iterator[tuple[int, ...]]:
    """Yield (row of the small view, its token, row of the large view, its token, slot) of every pair.

    The published rule: the center of each patch of the view with the smaller source area is sought in the other view.
    The released rules: among equals the second view is the small one, a point outside the source counts, a point on
    the upper or left edge does not.
    """
    rows, columns, size = views.grid.rows, views.grid.columns, views.grid.patch_size
    prefix = views.num_prefix_tokens
    for image, maps in enumerate(zip(*views.to_source, strict=True)):
        areas = [abs(m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]) for m in maps]
        small = int(areas[1] <= areas[0]) if released else int(areas[1] < areas[0])
        for slot in range(rows * columns):
            center = np.array([(slot % columns + 0.5) * size, (slot // columns + 0.5) * size, 1.0])
            source = maps[small] @ center
            width, height = views.source_size[image]
            if not released and not (0 <= source[0] < width and 0 <= source[1] < height):
                continue
            x, y, _ = np.linalg.solve(maps[1 - small], source) / size
            if released and (x <= 0 or y <= 0):
                continue
            column, row = math.floor(x), math.floor(y)
            if 0 <= column < columns and 0 <= row < rows:
                partner = row * columns + column
                yield 2 * image + small, prefix + slot, 2 * image + 1 - small, prefix + partner, slot
        if class_pair:
            yield 2 * image + small, 0, 2 * image + 1 - small, 0, rows * columns


def correlation(gates: Array, found: list[tuple[int, ...]]) -> Array:
    """Return S, equation 3."""
    num_experts = gates.shape[-1]
    total = np.zeros((num_experts, num_experts))
    for row1, token1, row2, token2, _ in found:
        for i in range(num_experts):
            for j in range(num_experts):
                total[i, j] += gates[row1, token1, i] * gates[row2, token2, j]
    return num_experts / len(found) * total


def offdiagonal(matrix: Array) -> float:
    """Return the mean of S_ij², i ≠ j."""
    num = len(matrix)
    return sum(matrix[i, j] ** 2 for i in range(num) for j in range(num) if i != j) / (num * (num - 1))


def diagonal(matrix: Array) -> float:
    """Return the mean of (1 − S_ii)²."""
    return sum((1 - matrix[i, i]) ** 2 for i in range(len(matrix))) / len(matrix)


def slot_diagonal(gates: Array, found: list[tuple[int, ...]], num_slots: int) -> float:
    """Return the mean over slots and experts of (D_je − 1)²."""
    num_experts = gates.shape[-1]
    table = np.zeros((num_slots, num_experts))
    for row1, token1, row2, token2, slot in found:
        for expert in range(num_experts):
            product = gates[row1, token1, expert] * gates[row2, token2, expert]
            table[slot, expert] += num_experts / len(found) * product
    return float(((table - 1) ** 2).mean())


def divergence(gates: Array, found: list[tuple[int, ...]]) -> float:
    """Return the mean Jensen-Shannon divergence of the pairs."""
    total = 0.0
    for row1, token1, row2, token2, _ in found:
        p, q = gates[row1, token1], gates[row2, token2]
        for one in (p, q):
            total += 0.5 * sum(
                a * math.log(a / ((b + c) / 2 + EPSILON) + EPSILON) for a, b, c in zip(one, p, q, strict=True)
            )
    return total / len(found)
