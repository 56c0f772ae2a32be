"""What training says of the room at experts, against loops over tokens and experts."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe.models.nn.plans import CapacityRule, DispatchPlan
from moeprobe.models.nn.routers.base import Decision, Router
from moeprobe.models.nn.routers.softmax_expert_choice import SoftmaxExpertChoice
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.models.nn.routers.sparse_expert_choice import SparseExpertChoice
from moeprobe.models.nn.routers.sparse_token_choice import SparseTokenChoice
from moeprobe.models.training.room import room

GROUPS, SIZE, WIDTH, EXPERTS = 3, 10, 6, 4


def decide(router: Router, seed: int = 0) -> tuple[Decision, dict[str, float]]:
    generator = torch.Generator().manual_seed(seed)
    for parameter in router.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    tokens = torch.randn(GROUPS, SIZE, WIDTH, generator=generator)
    decision = router(tokens)
    return decision, {name: float(value) for name, value in room({"blocks.1": decision}).items()}


def entries(decision: Decision) -> np.ndarray:
    assert decision.transport is not None
    return decision.transport.detach().double().numpy()


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("factor", [0.5, 1.05, 3.0])
def test_choices_without_room_and_filled_places_by_a_loop(top_k: int, factor: float) -> None:
    router = SoftmaxTokenChoice(WIDTH, EXPERTS, top_k, capacity=CapacityRule(factor, multiple_of=1))
    decision, found = decide(router.train())
    places = math.ceil(SIZE * top_k * factor / EXPERTS - 1e-9)
    assert isinstance(decision.plan, DispatchPlan) and decision.plan.capacity == places
    lost = taken = 0
    for group in range(GROUPS):
        queues = [0] * EXPERTS
        # All first choices, token by token, before any second one.
        for choice in range(top_k):
            for token in range(SIZE):
                expert = int(decision.selected[group, token, choice])
                queues[expert] += 1
                lost += queues[expert] > places
        taken += sum(min(queue, places) for queue in queues)
    assert found == pytest.approx(
        {"dropped": lost / (GROUPS * SIZE * top_k), "buffer_fill": taken / (GROUPS * EXPERTS * places)}
    )
    assert (found["dropped"] > 0) == (factor < 3) or factor == 1.05


def test_nothing_is_said_where_room_has_no_limit_or_experts_choose() -> None:
    assert decide(SoftmaxTokenChoice(WIDTH, EXPERTS, 1, capacity=CapacityRule(None)).train())[1] == {}
    assert decide(SoftmaxExpertChoice(WIDTH, EXPERTS).train())[1] == {}


def test_sparse_plans_by_a_loop() -> None:
    rule = CapacityRule(1.0, multiple_of=1)
    decision, found = decide(SparseExpertChoice(WIDTH, EXPERTS, capacity=rule).train())
    plan = entries(decision)
    assert plan.shape == (GROUPS, SIZE, EXPERTS)
    places = -(-SIZE // EXPERTS)
    columns = [
        np.count_nonzero(plan[group, :, expert]) for group in range(GROUPS) for expert in range(EXPERTS)
    ]
    rows = [plan[group, token].sum() for group in range(GROUPS) for token in range(SIZE)]
    np.testing.assert_allclose(plan.sum(1), SIZE / EXPERTS, rtol=1e-5)
    expected = {
        "plan_nonzeros": np.mean(columns) / places,
        "plan_error": np.mean([abs(row - 1) for row in rows]),
    }
    assert found == pytest.approx(expected, rel=1e-5) and max(columns) <= places
    decision, found = decide(SparseTokenChoice(WIDTH, EXPERTS, 2, capacity=CapacityRule(None)).train())
    plan = entries(decision)
    loads = [
        plan[group, :, expert].sum() / (SIZE / EXPERTS)
        for group in range(GROUPS)
        for expert in range(EXPERTS)
    ]
    nonzeros = [np.count_nonzero(plan[group, token]) for group in range(GROUPS) for token in range(SIZE)]
    expected = {
        "plan_nonzeros": np.mean(nonzeros) / 2,
        "plan_error": np.mean([abs(load - 1) for load in loads]),
    }
    assert found == pytest.approx(expected, rel=1e-5) and max(nonzeros) <= 2


def test_metrics_csv_has_them(tmp_path: Path) -> None:
    from moeprobe.models.config import load
    from moeprobe.studies.train import train

    tiny = [
        "model.image_size=16", "model.width=16", "model.depth=2", "model.num_heads=2", "model.hidden_width=16",
        "model.layers=every-2", "batch_size=8", "steps=2", "evaluate_every=1", "schedule.warmup_steps=0",
        "model.capacity_factor=0.3", "model.top_k=2",
    ]  # fmt: skip
    train(load("digits-baseline", tiny), folder=tmp_path / "run", device="cpu")
    metrics = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert (metrics["train_dropped"] > 0.3).all() and (metrics["train_buffer_fill"] > 0.5).all()
    assert "train_plan_error" not in metrics
