"""Comparisons with numbers that a released program printed, where they are at hand.

The numbers lie beside the checkout and are not part of the project; a test that wants them is skipped, with a
printed reason, where they are absent. Whatever is compared here is also held to an independent reference in a test
that always runs.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

_ORACLE = Path(__file__).resolve().parents[2] / "shared" / "oracle"

VALUES, GRADIENTS = 1e-5, 1e-4


def oracle(name: str) -> Any:
    """Return the numbers called ``name`` (``router/a_k1.npz``, ``router/cases.json``), or skip the test."""
    path = oracle_path(name)
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with np.load(path) as arrays:
        return dict(arrays)


def oracle_path(name: str) -> Path:
    """Return the golden file called ``name``, or skip the test."""
    path = _ORACLE / name
    if not path.exists():
        pytest.skip(f"golden numbers {name} are not beside this checkout")
    return path


def oracle_names(pattern: str) -> list[str]:
    """Return the golden files that match, or one placeholder that ``oracle`` will skip."""
    found = sorted(str(path.relative_to(_ORACLE)) for path in _ORACLE.glob(pattern))
    return found or [pattern]


def assert_golden(actual: torch.Tensor | ArrayLike, reference: ArrayLike, tolerance: float = VALUES) -> None:
    """Assert max|actual - reference| <= tolerance · max|reference|, and that 1.01 x the reference would fail."""
    expected = np.asarray(reference, dtype=np.float64)
    got = np.asarray(actual.detach() if isinstance(actual, torch.Tensor) else actual, dtype=np.float64)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    scale = np.abs(expected).max()
    error = np.abs(got - expected).max()
    assert error <= tolerance * scale, f"off by {error:.3g}; the largest reference is {scale:.3g}"
    if scale > 0:
        assert np.abs(1.01 * got - expected).max() > tolerance * scale, "this comparison cannot fail"
