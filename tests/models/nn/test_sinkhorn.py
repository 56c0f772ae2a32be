"""The transport plan and the two routers that read their choice off it, against loops and against POT."""

from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.config import MoeConfig
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.rules.transport import SinkhornRouter, transport_plan
from moeprobe.models.nn.routers.sinkhorn_expert_choice import SinkhornExpertChoice
from moeprobe.models.nn.routers.sinkhorn_token_choice import SinkhornTokenChoice
from moeprobe.models.nn.sparse import make_router
from moeprobe.runtime.schema import Plugin
from tests.golden import GRADIENTS, assert_golden
from tests.models.nn import references
from tests.models.nn.dense_form import dense

ROUTERS = pytest.mark.parametrize("kind", [SinkhornTokenChoice, SinkhornExpertChoice])
COMBINE = pytest.mark.parametrize("combine", ["softmax", "plan"])


def logits(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(kind: Callable[..., SinkhornRouter], width: int, num_experts: int, **options: Any) -> SinkhornRouter:
    """A router in float64, so that loops in float64 rank alike."""
    torch.manual_seed(0)
    rule = CapacityRule(options.pop("factor", 1.0), multiple_of=0)
    router: SinkhornRouter = kind(width, num_experts, capacity=rule, eval_capacity=rule, **options).double()
    with torch.no_grad():
        router.gate.weight.mul_(3)
    return router


@given(
    size=st.integers(1, 9),
    experts=st.integers(1, 12),
    epsilon=st.floats(0.3, 3),
    iterations=st.integers(1, 25),
    seed=st.integers(0, 9999),
)
@settings(deadline=None, max_examples=40)
def test_the_plan_is_the_plain_loop(
    size: int, experts: int, epsilon: float, iterations: int, seed: int
) -> None:
    given_logits = logits(2, size, experts, seed=seed, scale=2)
    plan = transport_plan(given_logits, epsilon=epsilon, iterations=iterations)
    for group in range(2):
        expected = references.sinkhorn(given_logits[group].numpy(), epsilon=epsilon, iterations=iterations)
        assert_golden(plan[group], expected, 1e-9)


def test_marginals() -> None:
    plan = transport_plan(logits(3, 100, 8).float(), epsilon=1.0, iterations=20)
    torch.testing.assert_close(plan.sum(-1), torch.ones(3, 100), rtol=0, atol=1e-6)
    torch.testing.assert_close(plan.sum(1), torch.full((3, 8), 12.5), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("iterations", "scale"), [(20, 1.0), (20, 4.0), (3000, 4.0)])
def test_the_plan_is_that_of_pot(iterations: int, scale: float) -> None:
    """After as many rounds, and (3,000) at convergence."""
    given_logits = logits(60, 7, scale=scale)
    expected = ot.bregman.sinkhorn_log(
        np.ones(60),
        np.full(7, 60 / 7),
        -given_logits.numpy(),
        reg=1.0,
        numItermax=iterations,
        stopThr=0,
        warn=False,
    )
    plan = transport_plan(given_logits[None].float(), epsilon=1.0, iterations=iterations)[0]
    assert_golden(plan, expected)


@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_the_gradient_goes_through_all_rounds(iterations: int) -> None:
    def plan(x: Tensor) -> Tensor:
        return transport_plan(x, epsilon=0.7, iterations=iterations)

    assert torch.autograd.gradcheck(plan, logits(2, 5, 3).requires_grad_())


def test_a_popular_expert_makes_no_difference() -> None:
    """What every token likes is everybody's gain: the plan undoes a bias of the logits, and the softmax doesn't."""
    plain = logits(1, 400, 8)
    skewed = plain + torch.tensor([5.0] + [0.0] * 7, dtype=torch.float64)
    fair = transport_plan(plain, epsilon=1.0, iterations=300)
    torch.testing.assert_close(transport_plan(skewed, epsilon=1.0, iterations=300), fair)
    first = transport_plan(skewed, epsilon=1.0, iterations=20).argmax(-1)
    moved = (first != skewed.argmax(-1)).double().mean()
    assert moved > 0.5
    assert torch.bincount(first[0]).max() < 1.5 * 400 / 8 < torch.bincount(skewed.argmax(-1)[0]).max()


def test_token_choice_reads_the_plan_and_not_the_softmax() -> None:
    router = made(SinkhornTokenChoice, 4, 6, top_k=2).eval()
    tokens = logits(2, 50, 4, seed=1) + 1.0  # a common part, which makes some experts popular
    found = router(tokens)
    assert found.scores is not None
    assert torch.equal(found.selected[..., 0], found.scores.argmax(-1))
    assert (found.selected[..., 0] != found.gates.argmax(-1)).double().mean() > 0.3
    np.testing.assert_array_equal(found.gates.detach().numpy(), found.logits.softmax(-1).detach().numpy())


@ROUTERS
@COMBINE
@pytest.mark.parametrize("training", [True, False])
def test_a_router_is_the_papers_algorithm(kind: type[SinkhornRouter], combine: str, training: bool) -> None:
    """In training the plan is of the noisy logits; only softmax weights of token choice are of the clean ones."""
    router = made(kind, 5, 6, combine=combine, noise_std=6.0).train(training)
    tokens = logits(2, 20, 5, seed=1)
    noise = logits(2, 20, 6, seed=2) if training else None
    found = router(tokens, noise)
    clean = tokens.numpy() @ router.gate.weight.detach().numpy().T
    noisy = clean if noise is None else clean + noise.numpy()
    plans = {
        name: np.stack([references.sinkhorn(group, epsilon=1.0, iterations=20) for group in values])
        for name, values in {"clean": clean, "noisy": noisy}.items()
    }
    expert_choice = kind is SinkhornExpertChoice
    if combine == "plan":
        gates, clean_gates = plans["noisy"], plans["clean"]
    else:
        gates, clean_gates = references.softmax(noisy if expert_choice else clean), references.softmax(clean)
    assert_golden(found.scores, plans["noisy"], 1e-9)
    assert_golden(found.gates, gates, 1e-9)
    assert_golden(found.clean_gates, clean_gates, 1e-9)
    assert router.gates_sum_to_one
    torch.testing.assert_close(found.gates.sum(-1), torch.ones(2, 20, dtype=torch.float64))
    if expert_choice:
        where, weights = references.expert_choice(plans["noisy"], gates, capacity=4)  # 20 · 1 / 6 = 3.3
    else:
        where, weights = references.dispatch(
            gates, scores=plans["noisy"], top_k=2, capacity=7
        )  # 20 · 2 / 6 = 6.7
    dispatch, combined = dense(found.plan)
    np.testing.assert_array_equal(dispatch.numpy(), where)
    assert_golden(combined, weights, 1e-9)


@given(
    size=st.integers(1, 9),
    experts=st.integers(1, 12),
    top_k=st.integers(1, 12),
    factor=st.floats(0.01, 3),
    levels=st.integers(1, 3),
    seed=st.integers(0, 9999),
)
@settings(deadline=None, max_examples=60)
def test_any_size_and_ties(
    size: int, experts: int, top_k: int, factor: float, levels: int, seed: int
) -> None:
    """One expert, more experts than tokens, room for one, k = E; equal tokens and equal experts."""
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, levels, (1, size, 2)) / 2)
    top_k = min(top_k, experts)
    choosing: dict[type[SinkhornRouter], dict[str, int]]
    choosing = {SinkhornTokenChoice: {"top_k": top_k}, SinkhornExpertChoice: {}}
    for kind, options in choosing.items():
        router = made(kind, 2, experts, factor=factor, **options).eval()
        found = router(tokens)
        assert found.scores is not None and found.scores.isfinite().all()
        scores, gates = found.scores.numpy(), found.gates.detach().numpy()
        if options:
            capacity = int(np.ceil(size * top_k * factor / experts))
            expected = references.dispatch(gates, scores=scores, top_k=top_k, capacity=capacity)
        else:
            capacity = int(np.ceil(size * factor / experts))
            expected = references.expert_choice(scores, gates, capacity=capacity)
        for got, wanted in zip(dense(found.plan), expected, strict=True):
            np.testing.assert_array_equal(got.detach().numpy(), wanted)


@ROUTERS
def test_the_softmax_carries_no_gradient_of_the_plan(kind: type[SinkhornRouter]) -> None:
    router = made(kind, 5, 6)
    tokens = logits(1, 12, 5, seed=1)
    found = router(tokens)
    assert found.scores is not None and not found.scores.requires_grad
    (got,) = torch.autograd.grad(found.plan.weight.square().sum(), router.gate.weight)
    taken = dense(found.plan)[0].any(-1)
    softmax = torch.nn.functional.linear(tokens, router.gate.weight).softmax(-1)
    (expected,) = torch.autograd.grad(softmax[taken].square().sum(), router.gate.weight)
    assert_golden(got, expected)


@ROUTERS
def test_the_plans_weights_carry_the_gradient_of_the_rounds(kind: type[SinkhornRouter]) -> None:
    """Finite differences of the combination's weights, in steps too small to change the choice."""
    router = made(kind, 3, 4, combine="plan").eval()
    tokens = logits(1, 6, 3, seed=1)
    weight = router.gate.weight

    def target() -> Tensor:
        return router(tokens).plan.weight.square().sum()

    (gradient,) = torch.autograd.grad(target(), weight)
    expected = torch.zeros_like(weight)
    with torch.no_grad():
        for place in np.ndindex(*weight.shape):
            before = weight[place].clone()
            sides = []
            for step in (1e-6, -1e-6):
                weight[place] = before + step
                sides.append(target())
            weight[place] = before
            expected[place] = (sides[0] - sides[1]) / 2e-6
    assert_golden(gradient, expected.detach(), GRADIENTS)


@ROUTERS
@COMBINE
@pytest.mark.parametrize("scale", [1e3, 1e8, 1e30])
def test_huge_logits_stay_finite(kind: type[SinkhornRouter], combine: str, scale: float) -> None:
    router = made(kind, 5, 6, combine=combine).float()
    tokens = (scale * logits(2, 20, 5, seed=1)).float()
    found = router(tokens)
    assert found.scores is not None and found.scores.isfinite().all() and found.gates.isfinite().all()
    torch.testing.assert_close(found.scores.sum(-1), torch.ones(2, 20))
    found.plan.weight.square().sum().backward()
    assert router.gate.weight.grad is not None and router.gate.weight.grad.isfinite().all()


@ROUTERS
@COMBINE
def test_float32_inside_autocast(kind: type[SinkhornRouter], combine: str) -> None:
    router = made(kind, 5, 6, combine=combine).float()
    tokens = logits(2, 20, 5, seed=1).float()
    with torch.autocast("cpu", torch.bfloat16):
        inside = router(tokens)
    outside = router(tokens)
    assert inside.scores is not None and inside.scores.dtype == inside.gates.dtype == torch.float32
    assert torch.equal(inside.scores, outside.scores) and torch.equal(inside.selected, outside.selected)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epsilon": 0.0}, "epsilon must be a number above 0; got 0.0"),
        ({"epsilon": float("inf")}, "epsilon must be a number above 0"),
        ({"iterations": 0}, "at least one iteration; got 0"),
        (
            {"combine": "both"},
            "In the router 'sinkhorn_token_choice', combine: .*softmax.*plan.*; got 'both'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], sentence: str) -> None:
    config = MoeConfig(router=Plugin(name="sinkhorn_token_choice", **options))
    with pytest.raises(UserError, match=sentence):
        make_router(config, 4, num_tokens=9)
