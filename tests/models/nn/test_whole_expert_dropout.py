"""Whole experts left out in training: what the others give then, and how often."""

import pytest
import torch

from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.dispatch import run_experts
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Router
from moeprobe.models.nn.routers.dense import Dense
from moeprobe.models.nn.routers.soft_moe import SoftMoe
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from tests.models.nn.dense_form import dense

WIDTH, NUM_EXPERTS, RATE = 6, 4, 0.3
ROOM = CapacityRule(1.0)
ROUTERS = {
    "dense": lambda: Dense(WIDTH, NUM_EXPERTS),
    "token choice": lambda: SoftmaxTokenChoice(
        WIDTH, NUM_EXPERTS, 2, noise_std=0.0, capacity=ROOM, eval_capacity=ROOM
    ),
    "soft": lambda: SoftMoe(WIDTH, NUM_EXPERTS, num_tokens=5, slots=2),
}
EVERY = pytest.mark.parametrize("name", ROUTERS)


def made(name: str, rate: float = RATE) -> MoeLayer:
    torch.manual_seed(0)
    router: Router = ROUTERS[name]()
    experts = MlpExperts(NUM_EXPERTS, WIDTH, 7)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    return MoeLayer(router, experts, whole_expert_dropout=rate)


def tokens() -> torch.Tensor:
    return torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1))


@EVERY
def test_the_output_is_that_of_the_experts_that_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the papers' form: each expert's part alone, multiplied by its factor."""
    layer = made(name).train()
    factors = torch.tensor([0.0, 2.0, 0.0, 0.5])
    monkeypatch.setattr(layer, "dropout_factors", lambda _: factors)
    with torch.no_grad():
        found = layer(tokens())
        plan = layer.route(tokens()).plan
        parts = [
            run_experts(layer.experts, tokens().flatten(0, 1), plan.scale(torch.eye(NUM_EXPERTS)[expert]))
            for expert in range(NUM_EXPERTS)
        ]
        whole = run_experts(layer.experts, tokens().flatten(0, 1), plan)
    torch.testing.assert_close(torch.stack(parts).sum(0), whole)
    expected = sum(factor * part for factor, part in zip(factors, parts, strict=True))
    torch.testing.assert_close(found.flatten(0, 1), expected)
    dispatch, combine = dense(plan.scale(factors))
    before, weights = dense(plan)
    assert torch.equal(dispatch, before) and torch.equal(combine, weights * factors[:, None])


@EVERY
def test_nothing_is_left_out_in_evaluation(name: str) -> None:
    with torch.no_grad():
        assert torch.equal(made(name).eval()(tokens()), made(name, rate=0.0).eval()(tokens()))
        assert torch.equal(made(name, rate=0.0).train()(tokens()), made(name, rate=0.0).eval()(tokens()))


def test_each_is_left_out_as_often_and_never_all() -> None:
    layer = made("dense")
    draws = torch.stack([layer.dropout_factors(tokens()) for _ in range(4000)])
    assert draws.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    # Standard deviation of a share of 4000: √(.3 · .7 / 4000) = .0072.
    assert ((draws == 0).double().mean(0) - RATE).abs().max() < 5 * 0.0072
    alone = made("dense", rate=0.99)
    assert all((alone.dropout_factors(tokens()) > 0).any() for _ in range(200))


def test_it_is_configured_by_the_model() -> None:
    config = ModelConfig.model_validate({"num_classes": 3, "whole_expert_dropout": 0.1})
    assert {layer.whole_expert_dropout for layer in moe_layers(build_model(config)).values()} == {0.1}
    assert {
        layer.whole_expert_dropout for layer in moe_layers(build_model(ModelConfig(num_classes=3))).values()
    } == {0.0}
