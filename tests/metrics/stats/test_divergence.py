"""The Jensen-Shannon distance: against SciPy, its closed forms, and where it is 0 or 1."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import rel_entr

from moeprobe.metrics.stats.divergence import FewShares, jensen_shannon_distance, shares


def _distance(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    return jensen_shannon_distance(shares(one), shares(two))


@example(396, 2, 30.0, 0.25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([0.01, 1.0, 30.0]), st.floats(0.0, 0.7))
def test_against_scipy(seed: int, num_experts: int, spread: float, absent: float) -> None:
    random = np.random.default_rng(seed)
    one, two = np.exp(random.normal(0, spread, (2, 5, num_experts)))
    for side in (one, two):
        side[random.random(side.shape) < absent] = 0
        side[:, 0] += 1e-6  # at least some weight
    found = _distance(torch.from_numpy(one), torch.from_numpy(two))
    p, q = (side / side.sum(1, keepdims=True) for side in (one, two))
    middle = (p + q) / 2
    divergence = (rel_entr(p, middle) + rel_entr(q, middle)).sum(1) / (2 * math.log(2))
    # Of equal sides rounding may leave less than nothing, of which SciPy's own distance makes no number.
    np.testing.assert_allclose(found, np.sqrt(divergence.clip(0)), atol=3e-8)
    np.testing.assert_array_equal(found, _distance(torch.from_numpy(two), torch.from_numpy(one)))


def test_closed_forms() -> None:
    one = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    two = torch.tensor([[0.0, 0.0, 3.0], [1.0, 0.0, 0.0], [0.4, 0.6, 1.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    # Half and half against whole: m = (3/4, 1/4), so the divergence is ½ [½ log ⅔ + ½ log 2] + ½ log 4/3.
    half = 0.5 * (0.5 * math.log2(0.5 / 0.75) + 0.5 * math.log2(0.5 / 0.25)) + 0.5 * math.log2(1 / 0.75)
    found = _distance(one, two)
    assert found.tolist() == [1.0, pytest.approx(math.sqrt(half), rel=1e-6), 0.0, 1.0, 0.0]


def test_small_distances_keep_their_figures_in_single_precision() -> None:
    """Logarithms of ratios would leave nothing but rounding here."""
    one = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    two = one + torch.tensor([1e-5, -1e-5, 0.0], dtype=torch.float64)
    exact = float(_distance(one, two))
    # To first order the divergence is Σ (p − q)² / (8 m ln 2).
    assert exact == pytest.approx(math.sqrt(2 * 1e-10 / (8 * 0.3 * math.log(2))), rel=1e-4)
    assert float(_distance(one.float(), two.float())) == pytest.approx(exact, rel=0.02)


def test_what_float32_rounds_is_no_distance() -> None:
    one = torch.tensor([[0.3, 0.3, 0.4]])
    assert _distance(one, one * (1 + 2**-23)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_a_type_rounds_is_no_distance(dtype: torch.dtype) -> None:
    step = torch.finfo(dtype).eps * torch.tensor([1.0, -1.0, 0.0], dtype=dtype)
    one = torch.tensor([0.3, 0.3, 0.4], dtype=dtype)
    assert jensen_shannon_distance(one, one + step).item() == 0
    assert jensen_shannon_distance(one, one + 40 * step).item() > 0


def test_double_precision_keeps_distances_that_single_rounds() -> None:
    one = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    step = torch.tensor([1e-12, -1e-12, 0.0], dtype=torch.float64)
    to_first_order = math.sqrt(2 * 1e-24 / (8 * 0.3 * math.log(2)))
    assert jensen_shannon_distance(one, one + step).item() == pytest.approx(to_first_order, rel=0.01)


def test_a_weight_that_the_other_rounds_away_leaves_a_distance() -> None:
    one, two = torch.tensor([[0.9, 0.1]]), torch.tensor([[1.0, 1e-9]])
    assert _distance(one, two).item() == pytest.approx(_distance(one.double(), two.double()).item(), rel=1e-6)


def test_what_is_not_a_number_is_not_equal() -> None:
    one = torch.tensor([[float("nan"), 0.5], [0.5, 0.5]])
    assert jensen_shannon_distance(one, torch.tensor([[0.5, 0.5], [0.5, 0.5]])).isnan().tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(("num_experts", "entries"), [(4, 1), (5, 2), (9, 3)])
def test_rows_with_few_entries_are_compared_as_whole_rows_are(num_experts: int, entries: int) -> None:
    torch.manual_seed(num_experts)
    whole = torch.rand(2, 4, 30, num_experts)
    kept = whole.topk(entries).indices[..., : torch.randint(1, entries + 1, (1,)).item()]
    rows = torch.zeros_like(whole).scatter(-1, kept, whole.gather(-1, kept))
    rows[0, 0], rows[1, 2] = rows[1, 0], rows[0, 2] * 3
    # Next to nothing beside nearly all, of the same expert.
    rows[0, 1, 0], rows[1, 1, 0] = 0, 0
    rows[0, 1, 0, :2], rows[1, 1, 0, 0] = torch.tensor([1.0, 1e-40]), 1
    parts = [shares(side) for side in rows]
    one, other = (FewShares.of(part.double(), entries=max(entries, 2)) for part in parts)
    distance = one.at(slice(0, 3), slice(0, 29)).distances(other.at(slice(0, 3)), dtype=torch.float32)
    expected = jensen_shannon_distance(parts[0][:3, :29, None], parts[1][:3, None])
    assert distance.shape == (3, 29, 30)
    torch.testing.assert_close(distance.float(), expected, rtol=0, atol=3e-7)
    assert torch.equal(distance == 0, expected == 0)
    assert distance[0].diagonal().eq(0).all() and distance[2, 0, 0] == 0


def test_what_is_not_a_number_makes_no_distance() -> None:
    rows = torch.tensor([[[0.5, 0.5, 0.0], [float("nan"), 0.5, 0.0]]])
    few = FewShares.of(rows.double(), entries=2)
    assert few.distances(few, dtype=torch.float32).isnan().tolist() == [[[False, True], [True, True]]]
