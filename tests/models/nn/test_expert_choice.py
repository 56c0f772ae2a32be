"""Softmax expert choice against a loop and against the released program."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprobe.errors import UserError
from moeprobe.models.nn.plans import CapacityRule, chosen_by_experts, plan_expert_choice
from moeprobe.models.nn.routers.softmax_expert_choice import SoftmaxExpertChoice
from tests.golden import assert_golden, golden
from tests.models.nn import references
from tests.models.nn.dense_form import dense


@pytest.mark.golden
@pytest.mark.parametrize("name", ["ec_a", "ec_b", "ec_c"])
def test_released_router(name: str) -> None:
    arrays = golden(f"router/{name}.npz")
    case = next(c for c in golden("router/cases.json") if c["file"] == f"{name}.npz")
    rule = CapacityRule(case["capacity_factor"])
    router = SoftmaxExpertChoice(
        case["D"], case["E"], noise_std=case["noise_std"], capacity=rule, eval_capacity=rule
    ).train(not case["deterministic"])
    router.gate.weight.data = torch.from_numpy(arrays["kernel"].T.copy())
    noise = torch.from_numpy(arrays["standard_normal"]) if "standard_normal" in arrays else None
    decision = router(torch.from_numpy(arrays["inputs"]), noise)
    assert_golden(decision.gates, arrays["gates"])
    dispatch, combine = dense(decision.plan)
    assert decision.plan.capacity == case["capacity"]
    np.testing.assert_array_equal(dispatch.numpy(), arrays["dispatch_weights"])
    assert_golden(combine, arrays["combine_weights"])
    taken = (decision.selected >= 0).sum(-1)
    assert taken.amax(1).tolist() == arrays["metric/num_experts_per_item_max"].tolist()
    assert taken.amin(1).tolist() == arrays["metric/num_experts_per_item_min"].tolist()


@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 9),
    experts=st.integers(1, 12),
    capacity=st.integers(1, 12),
    seed=st.integers(0, 9999),
    levels=st.integers(1, 5),
)
@settings(deadline=None, max_examples=60)
def test_it_is_the_plain_loop(
    groups: int, size: int, experts: int, capacity: int, seed: int, levels: int
) -> None:
    """Few levels make many ties."""
    random = np.random.default_rng(seed)
    scores = random.integers(1, levels + 1, (groups, size, experts)) / levels
    gates = random.random((groups, size, experts))
    plan = plan_expert_choice(torch.from_numpy(scores), torch.from_numpy(gates), capacity=capacity)
    where, combine = references.expert_choice(scores, gates, capacity=capacity)
    got = dense(plan)
    np.testing.assert_array_equal(got[0].numpy(), where)
    np.testing.assert_array_equal(got[1].numpy(), combine)
    selected = chosen_by_experts(plan, torch.from_numpy(scores)).numpy()
    for group in range(groups):
        for token in range(size):
            holding = [e for e in references.ranking(scores[group, token]) if where[group, token, e].any()]
            assert selected[group, token].tolist() == holding + [-1] * (experts - len(holding))


def test_without_a_capacity_there_is_no_choice() -> None:
    with pytest.raises(UserError, match="need a capacity factor"):
        SoftmaxExpertChoice(4, 3, capacity=CapacityRule(None))
