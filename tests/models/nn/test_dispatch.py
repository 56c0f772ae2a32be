"""The index plan against V-MoE's written algorithm and its released numbers."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from moeprobe.errors import UserError
from moeprobe.models.nn.dispatch import run_experts
from moeprobe.models.nn.experts import MlpExperts, StackedExperts
from moeprobe.models.nn.plans import (
    CapacityRule,
    DispatchPlan,
    plan_choices,
    plan_token_choice,
)
from moeprobe.models.nn.routers.rules.linear import top_choices
from tests.golden import assert_golden, golden, golden_names
from tests.models.nn import references
from tests.models.nn.dense_form import dense
from tests.models.nn.test_experts import TOLERANCE, PaddedFirst

# 6 tokens x 3 experts, small enough to serve by hand: with one choice and two places, experts take
# tokens 0, 1 | none | 4 in order of arrival; by priority .90 (token 5) and .80 (token 2) come first.
HAND = [
    [0.7, 0.2, 0.1],
    [0.6, 0.3, 0.1],
    [0.8, 0.15, 0.05],
    [0.5, 0.45, 0.05],
    [0.2, 0.3, 0.5],
    [0.9, 0.06, 0.04],
]


def plan(
    gates: torch.Tensor, *, top_k: int, capacity: int | None, batch_priority: bool = False
) -> DispatchPlan:
    return plan_token_choice(
        gates, top_choices(gates, top_k), capacity=capacity, batch_priority=batch_priority
    )


def buffers(dispatch: torch.Tensor) -> list[list[int]]:
    """The tokens in each expert's buffer, slot by slot, for one group."""
    return [[int(t) for t in dispatch[0, :, e].long().argmax(0)[dispatch[0, :, e].any(0)]] for e in range(3)]


@pytest.mark.parametrize(
    ("top_k", "capacity", "batch_priority", "expected"),
    [
        (1, 2, False, [[0, 1], [], [4]]),
        (1, 2, True, [[5, 2], [], [4]]),
        (2, 2, False, [[0, 1], [0, 1], [4]]),
        (2, 2, True, [[5, 2], [5, 2], [4]]),
        (2, 3, True, [[5, 2, 0], [5, 2, 0], [4]]),
    ],
)
def test_hand_example(top_k: int, capacity: int, batch_priority: bool, expected: list[list[int]]) -> None:
    made = plan(torch.tensor([HAND]), top_k=top_k, capacity=capacity, batch_priority=batch_priority)
    assert buffers(dense(made)[0]) == expected


def test_ties_go_to_the_lower_index_and_keep_the_order() -> None:
    made = plan(torch.full((1, 6, 3), 1 / 3), top_k=2, capacity=4, batch_priority=True)
    assert buffers(dense(made)[0]) == [[0, 1, 2, 3], [0, 1, 2, 3], []]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plan_is_the_written_algorithm(data: st.DataObject) -> None:
    groups, tokens, experts = (data.draw(st.integers(1, high)) for high in (3, 12, 5))
    top_k = data.draw(st.integers(1, experts))
    capacity = data.draw(st.integers(1, tokens * top_k))
    priority = data.draw(st.booleans())
    # Few distinct values, so that ties are common.
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    gates = rng.integers(1, 5, (groups, tokens, experts)) / 8
    dispatch, combine = dense(
        plan(torch.from_numpy(gates), top_k=top_k, capacity=capacity, batch_priority=priority)
    )
    expected = references.dispatch(gates, top_k=top_k, capacity=capacity, batch_priority=priority)
    np.testing.assert_array_equal(dispatch.numpy(), expected[0])
    np.testing.assert_array_equal(combine.numpy(), expected[1])


@pytest.mark.parametrize(
    ("group_size", "top_k", "num_experts", "factor", "capacity"),
    [
        (
            400,
            2,
            8,
            1.05,
            108,
        ),  # 400·2·1.05/8 = 105.0, ceil 105 (the float product is not above it), next 4: 108
        (400, 1, 8, 1.05, 56),  # 52.5 -> 53 -> 56
        (400, 2, 8, 4.0, 400),
        (1160, 2, 8, 1.5, 436),  # 435 -> 436
        (8, 2, 4, 1.05, 8),  # 4.2 -> 5 -> 8
        (8, 2, 4, 0.5, 4),  # 2 -> 4
    ],
)
def test_capacity(group_size: int, top_k: int, num_experts: int, factor: float, capacity: int) -> None:
    rule = CapacityRule(factor)
    assert rule.capacity(group_size=group_size, num_experts=num_experts, top_k=top_k) == capacity


@pytest.mark.parametrize(
    ("group_size", "top_k", "num_experts", "factor", "capacity"),
    [
        (2304, 1, 32, 1.25, 90),  # 72 of each; 1.25 · 72 = 90
        (10, 2, 4, 1.25, 6),  # ceil 2.5 = 3; floor 3.75 = 3; twice
        (10, 2, 4, 0.3, 0),
    ],
)
def test_capacity_as_tutel_counts_it(
    group_size: int, top_k: int, num_experts: int, factor: float, capacity: int
) -> None:
    rule = CapacityRule(factor, rounding="tutel", multiple_of=1)
    if capacity == 0:
        with pytest.raises(UserError, match="leaves no room"):
            rule.capacity(group_size=group_size, num_experts=num_experts, top_k=top_k)
    else:
        assert rule.capacity(group_size=group_size, num_experts=num_experts, top_k=top_k) == capacity


def test_renormalized_weights_are_of_what_was_chosen_kept_or_not() -> None:
    """Each expert has room for one token: the second loses its first choice, and keeps .3 / (.5 + .3) of the other."""
    gates = torch.tensor([[[0.6, 0.3, 0.1], [0.5, 0.2, 0.3]]])
    selected = torch.tensor([[[0, 1], [0, 2]]])
    plan = plan_token_choice(gates, selected, capacity=1, renormalise=True)
    torch.testing.assert_close(plan.weight, torch.tensor([0.6 / 0.9, 0.3 / 0.9, 0.0, 0.3 / 0.8]))
    assert plan.kept.tolist() == [True, True, False, True]
    again = plan_choices(gates, selected, plan.kept.view(1, 2, 2), capacity=1, renormalise=True)
    torch.testing.assert_close(again.weight, plan.weight)
    # A choice that is absent (-1) has no part in the sum.
    absent = torch.tensor([[[0, -1], [2, -1]]])
    alone = plan_choices(gates, absent, absent >= 0, capacity=None, renormalise=True)
    torch.testing.assert_close(alone.weight, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    # Experts that are forced on a token may have next to nothing between them.
    tiny = torch.tensor([[[1.0, 3e-12, 1e-12]]])
    forced = plan_choices(
        tiny, torch.tensor([[[1, 2]]]), torch.ones(1, 1, 2, dtype=torch.bool), capacity=None, renormalise=True
    )
    assert forced.weight.tolist() == pytest.approx([0.75, 0.25])


def test_capacity_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="leaves no room"):
        CapacityRule(0.01, rounding="round").capacity(group_size=4, num_experts=8, top_k=1)


def test_capacity_none_is_no_limit() -> None:
    assert CapacityRule(None).capacity(group_size=4, num_experts=8, top_k=1) is None


@pytest.mark.golden
def test_capacity_table() -> None:
    table = golden("dispatch/capacity.json")
    assert len(table["rows"]) == 3456
    for group_size, top_k, num_experts, factor, rounding, multiple_of, expected in table["rows"]:
        rule = CapacityRule(factor, rounding=rounding, multiple_of=multiple_of or 0)
        try:
            got = rule.capacity(group_size=group_size, num_experts=num_experts, top_k=top_k)
        except UserError:
            got = None
        assert got == expected, (group_size, top_k, num_experts, factor, rounding, multiple_of)


class ToyExperts(StackedExperts):
    """Expert e maps x to (e + 1) x + e / 2: its output says which expert it was."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def run_padded(self, rows: torch.Tensor) -> torch.Tensor:
        expert = torch.arange(self.num_experts, dtype=rows.dtype)[:, None, None]
        return (expert + 1) * rows + expert / 2

    def run_ragged(self, rows: torch.Tensor, loads: torch.Tensor) -> torch.Tensor:
        expert = torch.arange(self.num_experts, dtype=rows.dtype).repeat_interleave(loads)[:, None]
        return (expert + 1) * rows + expert / 2


@pytest.mark.golden
@pytest.mark.parametrize("name", golden_names("dispatch/r*.npz"))
def test_released_dispatch(name: str) -> None:
    case = next(c for c in golden("dispatch/cases.json") if name.endswith(c["file"]))
    arrays = golden(name)
    gates, tokens = torch.from_numpy(arrays["gates"]), torch.from_numpy(arrays["tokens"])
    rule = CapacityRule(case["capacity_factor"], multiple_of=case["multiple_of"] or 0)
    capacity = rule.capacity(group_size=case["S"], num_experts=case["E"], top_k=case["K"])
    assert capacity == case["capacity"]
    made = plan(gates, top_k=case["K"], capacity=capacity, batch_priority=case["batch_priority"])
    assert int((~made.kept).sum()) == case["dropped_assignments"]
    check_dispatch(made, arrays)
    out = run_experts(ToyExperts(case["E"]), tokens.flatten(0, 1), made)
    assert_golden(out.view_as(tokens), arrays["out"])


def check_dispatch(made: DispatchPlan, arrays: Any) -> None:
    dispatch, combine = dense(made)
    if "dispatch" in arrays:
        np.testing.assert_array_equal(dispatch.numpy(), arrays["dispatch"])
        assert_golden(combine, arrays["combine"])
    else:
        place = torch.where(dispatch.any(-1), dispatch.long().argmax(-1), -1)
        np.testing.assert_array_equal(place.numpy(), arrays["position"])


@pytest.mark.golden
def test_released_bfloat16_dispatch() -> None:
    arrays = golden("dispatch/bf16.npz")
    gates, tokens = torch.from_numpy(arrays["gates"]), torch.from_numpy(arrays["tokens"])

    class Product(ToyExperts):
        def run_padded(self, rows: torch.Tensor) -> torch.Tensor:
            return rows @ torch.from_numpy(arrays["expert_w"])

    top_k = int(arrays["dispatch"].any(-1).sum(-1).max())
    made = plan(gates, top_k=top_k, capacity=arrays["dispatch"].shape[-1])
    np.testing.assert_array_equal(dense(made)[0].numpy(), arrays["dispatch"])
    out = run_experts(Product(4), tokens.flatten(0, 1), made, bfloat16=True)
    assert_golden(out.view_as(tokens), arrays["out_bf16"], 1e-6)


@pytest.mark.parametrize("capacity", [None, 3])
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_experts_and_combination_are_a_loop(
    capacity: int | None, skewed: bool, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted (large experts), padded, grouped and float64 paths against a loop over tokens; dropped tokens give 0."""
    if large:
        monkeypatch.setattr("moeprobe.models.nn.experts.LARGE_MATRIX", 0)
    torch.manual_seed(0)
    experts = MlpExperts(4, 8, 16).eval()
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    logits = torch.randn(2, 10, 4) + (torch.tensor([6.0, 0, 0, 0]) if skewed else 0)
    gates, tokens = logits.softmax(-1), torch.randn(20, 8)
    made = plan(gates, top_k=2, capacity=capacity)
    _, combine = references.dispatch(gates.double().numpy(), top_k=2, capacity=capacity or 20)
    weight = combine.sum(-1).reshape(20, 4)
    state = {name: value.detach().double().numpy() for name, value in experts.named_parameters()}
    expected = np.zeros((20, 8))
    for token in range(20):
        for e in range(4):
            fc1 = (state["fc1.weight"][e], state["fc1.bias"][e])
            fc2 = (state["fc2.weight"][e], state["fc2.bias"][e])
            row = references.mlp(tokens[token].double().numpy(), fc1, fc2)
            expected[token] += weight[token, e] * row
    assert_golden(run_experts(experts, tokens, made), expected)
    double = experts.double()
    doubled = plan(gates.double(), top_k=2, capacity=capacity)
    assert_golden(run_experts(double, tokens.double(), doubled), expected, 1e-6)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("capacity", [None, 60, 7])
@pytest.mark.parametrize("skew", [0.0, 4.0])
def test_gradients_of_all_paths_agree(
    top_k: int, capacity: int | None, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sorted, the padded and the grouped path differ in speed alone; with 7 places some tokens are dropped."""
    monkeypatch.setattr("moeprobe.models.nn.experts.SMALL_SHARE", 0)
    torch.manual_seed(1)
    gates = (torch.randn(1, 30, 3) + torch.tensor([skew, 0, 0])).softmax(-1)
    tokens, upstream = torch.randn(30, 8), torch.randn(30, 8)
    made = plan(gates, top_k=top_k, capacity=capacity)
    assert (capacity == 7) == (not made.kept.all())
    found = []
    for kind in (PaddedFirst, MlpExperts):
        torch.manual_seed(2)
        experts = kind(3, 8, 16)
        leaves = tokens.clone().requires_grad_(), made.weight.clone().requires_grad_()
        out = run_experts(experts, leaves[0], replace(made, weight=leaves[1] * made.kept))
        found.append([out, *torch.autograd.grad(out, [*leaves, *experts.parameters()], upstream)])
    for expected, actual in zip(*found, strict=True):
        assert (actual - expected).abs().max() <= TOLERANCE * expected.abs().max()


def test_nothing_spreads_from_a_token_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped tokens give 0 although their expert returns NaN for another token."""
    monkeypatch.setattr("moeprobe.models.nn.experts.SMALL_SHARE", 0)
    tokens = torch.randn(6, 8)
    tokens[0] = torch.nan
    made = plan(torch.tensor([HAND]), top_k=1, capacity=1)
    out = run_experts(MlpExperts(3, 8, 16), tokens, made)
    assert out.isnan().any(-1).tolist() == [True, *[False] * 5]
    assert (out[~made.kept] == 0).all()


def test_expert_dropout_shares_one_mask() -> None:
    torch.manual_seed(0)
    experts = MlpExperts(3, 8, 64, dropout=0.5, activation=torch.nn.Identity()).train()
    with torch.no_grad():
        for linear in (experts.fc1, experts.fc2):
            linear.weight.copy_(linear.weight[:1].expand_as(linear.weight))
    out = experts(torch.randn(1, 5, 8).expand(3, 5, 8))
    torch.testing.assert_close(out[0], out[1])
    assert (out == 0).any() and not (out == 0).all()
