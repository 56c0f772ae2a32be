"""The outlines of ``shapes``: polygons inside the unit circle, each the mirror image of itself up to a rotation."""

import numpy as np

_CURVE = 96  # corners of a curved outline
_FLIP = np.array([1.0, -1.0])


def _ring(num_points: int, *, radius: float = 1.0) -> np.ndarray:
    """Return the corners of a regular polygon, the first of them straight up (y points down)."""
    angle = 2 * np.pi * np.arange(num_points) / num_points
    return radius * np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def _fit(points: np.ndarray) -> np.ndarray:
    """Return ``points`` moved and scaled so that the middle of their bounding box is 0 and the farthest is at 1."""
    points = points - (points.min(axis=0) + points.max(axis=0)) / 2
    return points / np.linalg.norm(points, axis=1).max()


def _star() -> np.ndarray:
    corners = _ring(10)
    corners[1::2] *= 0.42
    return corners


def _cross() -> np.ndarray:
    arm = 0.3
    quarter = np.array([(arm, -1), (arm, -arm), (1, -arm)])
    turn = np.array([[0, 1], [-1, 0]])
    return _fit(np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)]))


def _heart() -> np.ndarray:
    t = 2 * np.pi * np.arange(_CURVE) / _CURVE
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return _fit(np.stack([x, y], axis=1) * _FLIP)


def _crescent() -> np.ndarray:
    """Return the unit disc less another disc that is shifted: two arcs that meet at their tips."""
    shift, radius = 0.42, 0.8
    tip = (1 - radius**2 + shift**2) / (2 * shift)  # x where the circles cross
    outer_tip = np.arccos(tip)
    inner_tip = np.arccos((tip - shift) / radius)
    outer = np.linspace(outer_tip, 2 * np.pi - outer_tip, _CURVE)
    inner = np.linspace(2 * np.pi - inner_tip, inner_tip, _CURVE)
    arcs = [np.stack([np.cos(outer), np.sin(outer)], axis=1)]
    arcs.append(np.stack([shift + radius * np.cos(inner), radius * np.sin(inner)], axis=1))
    return _fit(np.concatenate(arcs))


def _arrow() -> np.ndarray:
    half = np.array([(0, -1), (0.75, -0.15), (0.27, -0.15), (0.27, 0.95)])
    return _fit(np.concatenate([half, half[:0:-1] * -_FLIP]))


# name -> polygons filled in turn: object, hole.
OUTLINES: dict[str, tuple[np.ndarray, ...]] = {
    "arrow": (_arrow(),),
    "circle": (_ring(_CURVE),),
    "crescent": (_crescent(),),
    "cross": (_cross(),),
    "heart": (_heart(),),
    "hexagon": (_ring(6),),
    "ring": (_ring(_CURVE), _ring(_CURVE, radius=0.6)),
    "square": (_ring(4),),
    "star": (_star(),),
    "triangle": (_ring(3),),
}
