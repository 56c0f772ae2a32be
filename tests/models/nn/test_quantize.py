"""Rounded weights, against loops in float64."""

import numpy as np
import pytest
import torch

from moeprobe.models.nn.quantize import FORMATS, quantize_weight
from moeprobe.probes.precision import FORMATS as NAMED


def by_a_loop(row: np.ndarray, name: str) -> np.ndarray:
    """One row of inputs of one output."""
    if name == "int4_g128":
        parts = [row[start : start + 128] for start in range(0, len(row), 128)]
        return np.concatenate([on_a_grid(part, np.arange(-7, 8), 7) for part in parts])
    grid = np.arange(-127, 128) if name == "int8" else e4m3()
    return on_a_grid(row, grid, 127 if name == "int8" else 448)


def e4m3() -> np.ndarray:
    """All numbers of four bits of exponent (bias 7) and three of mantissa: S.1111.111 is none."""
    positive = [m / 8 * 2.0**-6 for m in range(8)]
    positive += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)]
    return np.array(sorted({-one for one in positive} | set(positive)))


def on_a_grid(row: np.ndarray, grid: np.ndarray, largest: float) -> np.ndarray:
    scale = abs(row).max() / largest
    if scale == 0:
        return row
    return grid[abs(row[:, None] / scale - grid).argmin(1)] * scale


@pytest.mark.parametrize("name", ["fp8_e4m3", "int8", "int4_g128"])
@pytest.mark.parametrize(
    ("shape", "inputs"), [((5, 200), -1), ((3, 140, 4), -2), ((3, 4, 140), -1), ((4, 3, 7, 7), -1)]
)
def test_matrices_by_a_loop(name: str, shape: tuple[int, ...], inputs: int) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=shape)).float()
    weight[0] = 0
    found = quantize_weight(weight, name, inputs=inputs)
    assert found.shape == weight.shape and found.dtype == weight.dtype and not (found == weight)[1:].all()
    rows, of_rows = (
        (one.flatten(1) if len(shape) == 4 else one.movedim(inputs, -1).flatten(0, -2)).numpy().astype(float)
        for one in (weight, found)
    )
    expected = np.stack([by_a_loop(row, name) for row in rows])
    # A number halfway between two of the grid may fall either way by its rounding.
    assert (abs(of_rows - expected) > 1e-6).mean() < 1e-3


@pytest.mark.parametrize(("name", "bits"), [("bf16", 7), ("fp16", 10)])
def test_narrow_floats_round_everything(name: str, bits: int) -> None:
    vector = torch.tensor([1 + 2.0**-bits * 0.75, 1.0, -3.0, 0.0, 1e30])
    found = quantize_weight(vector, name)
    assert found.tolist()[:4] == [1 + 2.0**-bits, 1.0, -3.0, 0.0]
    assert found.isfinite().all() and (name == "bf16") == (found[4].item() > 1e29)


@pytest.mark.parametrize("name", ["fp8_e4m3", "int8", "int4_g128"])
def test_vectors_stay_as_they_are(name: str) -> None:
    vector = torch.randn(30)
    assert torch.equal(quantize_weight(vector, name), vector)


def test_the_probe_names_the_formats_that_there_are() -> None:
    assert NAMED == FORMATS
