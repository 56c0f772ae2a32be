"""The sparse plan against loops in float64 and against POT, and the two routers that choose by it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprobe.errors import UserError
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.rules.transport import SparseTransport, project
from moeprobe.models.nn.routers.sparse_expert_choice import SparseExpertChoice
from moeprobe.models.nn.routers.sparse_token_choice import SparseTokenChoice
from tests.models.nn import references
from tests.models.nn.dense_form import dense

SIZES = {
    "rows": st.integers(1, 12),
    "columns": st.integers(1, 9),
    "nonzeros": st.integers(1, 12),
    "seed": st.integers(0, 9999),
    "levels": st.sampled_from([1, 2, 4, 1000]),
}


def similarities(rows: int, columns: int, seed: int, levels: int = 1000) -> np.ndarray:
    """Few levels make many ties."""
    return np.random.default_rng(seed).integers(0, levels + 1, (rows, columns)) / levels


@given(**SIZES, scale=st.sampled_from([0.1, 1.0, 30.0]))
@settings(deadline=None, max_examples=80)
def test_the_projection_is_the_sorted_loop(
    rows: int, columns: int, nonzeros: int, seed: int, levels: int, scale: float
) -> None:
    scores = scale * similarities(rows, columns, seed, levels)
    found = project(torch.from_numpy(scores), max_nonzeros=nonzeros).numpy()
    expected = np.stack([references.sparse_simplex(row, max_nonzeros=nonzeros) for row in scores])
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(**SIZES)
@settings(deadline=None, max_examples=40)
def test_rows_are_exact_and_sparse(rows: int, columns: int, nonzeros: int, seed: int, levels: int) -> None:
    similarity = torch.from_numpy(similarities(rows, columns, seed, levels)).float()
    plan = SparseTransport().plan(similarity[None], row_sum=columns / rows, max_nonzeros=nonzeros)[0]
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(1), torch.full((rows,), columns / rows), rtol=1e-5, atol=1e-6)
    assert ((plan > 0).sum(1) <= nonzeros).all()


@pytest.mark.parametrize(
    ("rows", "columns", "nonzeros", "gamma"), [(4, 10, 3, 1.0), (10, 4, 2, 1.0), (3, 5, 5, 0.1)]
)
def test_the_plan_is_the_loop(rows: int, columns: int, nonzeros: int, gamma: float) -> None:
    groups = [similarities(rows, columns, seed) for seed in (0, 1)]
    row_sum = columns / rows
    found = SparseTransport(gamma, learning_rate=0.03, iterations=20).plan(
        torch.from_numpy(np.stack(groups)), row_sum=row_sum, max_nonzeros=nonzeros
    )
    shape: dict[str, Any] = {"row_sum": row_sum, "max_nonzeros": nonzeros, "gamma": gamma}
    for plan, similarity in zip(found, groups, strict=True):
        potentials = references.adam_on_semi_dual(similarity, **shape, learning_rate=0.03, iterations=20)
        expected = references.sparse_plan(similarity, potentials, **shape)
        np.testing.assert_allclose(plan.numpy(), expected, atol=1e-9)
        untouched = references.sparse_plan(similarity, np.zeros(columns), **shape)
        assert np.abs(untouched - expected).max() > 1e-3, "no step would do as well: no test"


@pytest.mark.filterwarnings("ignore:scipy.optimize:DeprecationWarning")  # POT names an option that is going
@pytest.mark.parametrize(("rows", "columns", "nonzeros"), [(5, 20, 4), (5, 20, 8), (20, 5, 2)])
def test_after_many_steps_the_semi_dual_is_that_of_pot(
    rows: int, columns: int, nonzeros: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within 1 % of what L-BFGS finds in another library, where zero potentials are further off than that."""
    from ot.smooth import smooth_ot_semi_dual

    random = np.random.default_rng(0)
    similarity = random.random((rows, columns)) + np.linspace(0, 1, columns)
    row_sum = columns / rows
    _, log = smooth_ot_semi_dual(
        np.ones(columns), np.full(rows, row_sum), -similarity.T, 1.0,
        reg_type="sparsity_constrained", max_nz=nonzeros, log=True,
    )  # fmt: skip
    capsys.readouterr()
    shape: dict[str, Any] = {"row_sum": row_sum, "max_nonzeros": nonzeros}
    found = SparseTransport(iterations=2000).potentials(torch.from_numpy(similarity)[None], **shape)[0]

    def objective(potentials: np.ndarray) -> float:
        plan = references.sparse_plan(similarity, potentials, **shape, gamma=1.0)
        return references.semi_dual(similarity, potentials, plan, gamma=1.0)

    best, own, start = objective(log["alpha"]), objective(found.numpy()), objective(np.zeros(columns))
    assert abs(own - best) < 0.01 * abs(best)
    assert abs(start - best) > 0.01 * abs(best)


def test_the_gradient_is_that_of_the_kept_values() -> None:
    scores = torch.from_numpy(similarities(3, 6, 0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: project(x, max_nonzeros=3), scores)


@pytest.mark.parametrize("name", ["gamma", "learning_rate", "iterations"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_what_is_not_positive_is_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{name} must be a positive number"):
        SparseTransport(**{name: value})  # type: ignore[arg-type]


@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 9),
    experts=st.integers(1, 12),
    capacity=st.integers(1, 12),
    seed=st.integers(0, 9999),
    tied=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_experts_take_the_best_of_the_plan(
    groups: int, size: int, experts: int, capacity: int, seed: int, tied: bool
) -> None:
    """C tokens each, whatever the plan gives them, of equal ones the first; weighed by the softmax."""
    torch.manual_seed(seed)
    rule = CapacityRule(capacity * experts / size, rounding="round", multiple_of=1)
    router = SparseExpertChoice(4, experts, capacity=rule, eval_capacity=rule).eval()
    tokens = torch.randn(groups, 1 if tied else size, 4).expand(-1, size, -1).contiguous()
    with torch.no_grad():
        decision = router(tokens)
    plan, softmax = decision.scores, decision.logits.softmax(-1)
    torch.testing.assert_close(
        plan.sum(1), torch.full((groups, experts), size / experts), rtol=1e-5, atol=1e-6
    )
    assert ((plan > 0).sum(1) <= capacity).all()
    where, combine = dense(decision.plan)
    expected, weights = references.expert_choice(
        plan.double().numpy(), softmax.double().numpy(), capacity=capacity
    )
    np.testing.assert_array_equal(where.numpy(), expected)
    np.testing.assert_allclose(combine.numpy(), weights, rtol=1e-6)
    assert ((decision.selected >= 0).sum((1, 2)) == min(capacity, size) * experts).all()


@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 9),
    experts=st.integers(1, 7),
    choices=st.integers(1, 7),
    seed=st.integers(0, 9999),
    tied=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_tokens_take_the_best_of_the_plan(
    groups: int, size: int, experts: int, choices: int, seed: int, tied: bool
) -> None:
    torch.manual_seed(seed)
    choices = min(choices, experts)
    rule = CapacityRule(1.0, multiple_of=1)
    router = SparseTokenChoice(4, experts, choices, capacity=rule, eval_capacity=rule).eval()
    tokens = torch.randn(groups, 1 if tied else size, 4).expand(-1, size, -1).contiguous()
    with torch.no_grad():
        decision = router(tokens)
    plan, softmax = decision.scores, decision.logits.softmax(-1)
    torch.testing.assert_close(plan.sum(-1), torch.ones(groups, size), rtol=1e-5, atol=1e-6)
    assert ((plan > 0).sum(-1) <= choices).all()
    expected = [[references.ranking(row)[:choices] for row in group] for group in plan.numpy()]
    np.testing.assert_array_equal(decision.selected.numpy(), expected)
    # All first choices are served before any second choice, and weighed by the softmax.
    capacity = -(-size * choices // experts)
    fill = np.zeros((groups, experts), dtype=int)
    for choice in range(choices):
        for group, token in np.ndindex(groups, size):
            expert = expected[group][token][choice]
            assert bool(decision.processed[group, token, choice]) == (fill[group, expert] < capacity)
            fill[group, expert] += 1
    weight = decision.plan.weight.view_as(decision.selected)
    torch.testing.assert_close(weight, softmax.gather(-1, decision.selected) * decision.processed)


@pytest.mark.parametrize("kind", [SparseTokenChoice, SparseExpertChoice])
def test_what_combines(kind: type[SparseTokenChoice] | type[SparseExpertChoice]) -> None:
    """The softmax, without gradient through the plan; or the plan, and then the router says whether it sums to one."""
    torch.manual_seed(0)
    tokens = 3 * torch.randn(2, 10, 6)
    softmax, plan = kind(6, 4), kind(6, 4, combine="plan")
    plan.load_state_dict(softmax.state_dict())
    one, other = softmax(tokens), plan(tokens)
    torch.testing.assert_close(one.gates, one.logits.softmax(-1))
    assert one.scores is not None and not one.scores.requires_grad and softmax.gates_sum_to_one
    torch.testing.assert_close(other.gates, one.scores)
    assert other.scores is None and torch.equal(other.selected, one.selected)
    off = (other.gates.sum(-1) - 1).abs().max()
    assert plan.gates_sum_to_one == (off < 1e-5)
    assert plan.gates_sum_to_one == (kind is SparseTokenChoice)
    other.plan.weight.square().sum().backward()
    assert plan.gate.weight.grad is not None and plan.gate.weight.grad.abs().sum() > 0
