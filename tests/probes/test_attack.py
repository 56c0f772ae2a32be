"""Attacks: the gradient is the loss's own, the pixels stay near, and the answer goes before the routing does."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from moeprobe import api
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.probes.attack.measure import ascended, at_random
from moeprobe.probes.attack.objectives import remaining_margins, routes_gradient
from moeprobe.routing.capabilities import Differentiable, Steerable
from moeprobe.routing.gradients import gradient_of
from moeprobe.routing.record import RoutingTrace
from tests.adapters import zoo
from tests.commands import Trained, refused, run
from tests.routing.routings import checkpoint, routing, tiny


def ours(**arguments: Any) -> Vmoe:
    return Vmoe(tiny(**arguments), mean=(0.5,) * 3, std=(0.25,) * 3)


def images(count: int, size: int = 32, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(3), dtype=dtype)


def loss(model: Any, pixels: Tensor, targets: Tensor) -> Tensor:
    scores = model.trace(pixels)[0]
    return F.cross_entropy(scores.double(), targets, reduction="none")


@pytest.mark.parametrize(
    "make",
    [
        ours,
        lambda: ours(router="softmax_expert_choice"),
        lambda: Hooks(zoo.vit(seed=1), classes="digits", **zoo.VIT),
    ],
    ids=["ours", "expert choice", "hooks"],
)
def test_the_gradient_is_that_of_finite_differences(make: Callable[[], Any]) -> None:
    model = make()
    assert isinstance(model, Differentiable)
    size = model.image_size[0] if isinstance(model, Vmoe) else zoo.VIT["image_size"]
    pixels, targets = images(2, size), torch.tensor([3, 7])
    gradient = model.loss_gradient(pixels, targets)
    assert gradient.shape == pixels.shape and not gradient.requires_grad and not pixels.requires_grad
    # Along its own direction, where it is largest, and for one image alone: that of the other stays. So short that
    # a loss that is all but zero, and bends most, is still a straight line.
    step = torch.zeros_like(pixels)
    step[0] = gradient[0] / gradient[0].norm() * 1e-3
    change = (loss(model, pixels + step, targets) - loss(model, pixels - step, targets)) / 2
    expected = (gradient[0] * step[0]).sum().item()
    assert change[0].item() == pytest.approx(expected, rel=0.05)
    assert abs(change[1].item()) < 1e-6


def test_an_ascent_against_one_that_is_written_down_once_more() -> None:
    model: Any = checkpoint().model
    pixels, targets, epsilon = images(3), torch.tensor([0, 1, 2]), 4 / 255
    found = ascended(partial(model.loss_gradient, targets=targets), pixels, epsilon=epsilon, steps=3)
    expected = pixels.clone()
    for _ in range(3):
        one = expected.clone().requires_grad_()
        F.cross_entropy(model._forward(one), targets).backward()
        assert one.grad is not None
        with torch.no_grad():
            delta = (expected + epsilon * 2.5 / 3 * torch.sign(one.grad) - pixels).clip(-epsilon, epsilon)
            expected = (pixels + delta).clip(0, 1)
    torch.testing.assert_close(found, expected)
    assert (found - pixels).abs().max() <= epsilon + 1e-6 and found.min() >= 0 and found.max() <= 1
    assert (loss(model, found, targets) > loss(model, pixels, targets)).all()


def test_random_signs_belong_to_the_image() -> None:
    pixels = images(3)
    found = at_random(pixels, ["a", "b", "c"], epsilon=0.1, seed=0)
    again = at_random(pixels[[2, 0]], ["c", "a"], epsilon=0.1, seed=0)
    assert again.equal(found[[2, 0]])
    inside = (pixels > 0.1) & (pixels < 0.9)
    moved = (found - pixels)[inside]
    np.testing.assert_allclose(moved.abs(), 0.1, atol=1e-6)
    assert abs(float((moved > 0).float().mean()) - 0.5) < 0.02
    assert not at_random(pixels, ["a", "b", "c"], epsilon=0.1, seed=1).equal(found)


class Linear:
    """A router whose tokens are the columns of an image, with logits that are linear in a column's pixels."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def trace(self, pixels: Tensor) -> RoutingTrace:
        gates = (pixels.flatten(1, 2).transpose(1, 2) @ self.weight.T).softmax(-1)
        selected = gates.topk(1).indices.to(torch.int16)
        layer = routing(len(pixels), grid=(1, gates.shape[1]), prefix=0, num_experts=gates.shape[2], top_k=1)
        fields: dict[str, Any] = {"gates": gates, "selected": selected, "processed": selected >= 0}
        return RoutingTrace({"linear": dataclasses.replace(layer, **fields)})

    def routing_gradient(
        self, pixels: Tensor, objective: Any, *, layers: Sequence[str] | None = None
    ) -> Tensor:
        return gradient_of(lambda at: objective(at.new_zeros(len(at), 2), self.trace(at)), pixels)


def test_routes_of_a_linear_router_change_from_the_smallest_epsilon_on() -> None:
    random = torch.Generator().manual_seed(0)
    pixels = 0.4 + 0.2 * torch.rand(4, 3, 5, 16, generator=random, dtype=torch.float64)
    weight = torch.randn(2, 15, generator=random, dtype=torch.float64)
    model: Any = Linear(weight)
    clean = model.trace(pixels)
    # Of two experts: a token turns where its margin is undone by a step against the signs of w_1 - w_2.
    logits = pixels.flatten(1, 2).transpose(1, 2) @ weight.T
    critical = (logits[..., 0] - logits[..., 1]).abs() / (weight[0] - weight[1]).abs().sum()
    gradient = routes_gradient(model, clean, layers=None)
    for epsilon in critical.flatten().quantile(torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)).tolist():
        moved = model.trace(ascended(gradient, pixels, epsilon=epsilon, steps=8)).layers["linear"]
        turned = ~clean.layers["linear"].selects_the_same(moved)
        assert turned[critical > epsilon * (1 + 1e-6)].sum() == 0 < turned.sum()
        assert turned[critical < epsilon * (1 - 1e-6)].all()


@pytest.mark.parametrize("router", ["softmax_token_choice", "softmax_expert_choice", "cosine_token_choice"])
def test_the_gradient_of_routes_is_that_of_finite_differences(router: str) -> None:
    model = ours(router=router)
    assert isinstance(model, Steerable)
    pixels = images(2, model.image_size[0])
    clean = model.trace(pixels)[1]
    values: list[Tensor] = []

    def objective(scores: Tensor, found: RoutingTrace) -> Tensor:
        margins = [remaining_margins(clean.layers[name], layer) for name, layer in found.layers.items()]
        values.append(torch.stack([margin.sum(-1) for margin in margins if margin is not None]).sum(0))
        return values[-1]

    gradient = model.routing_gradient(pixels, objective)
    step = torch.zeros_like(pixels)
    step[0] = gradient[0] / gradient[0].norm() * 1e-4
    model.routing_gradient(pixels + step, objective)
    model.routing_gradient(pixels - step, objective)
    change = (values[1] - values[2]) / 2
    assert change[0].item() == pytest.approx((gradient[0] * step[0]).sum().item(), rel=0.05)
    assert abs(change[1].item()) < 1e-5


def test_an_attack_on_routes_turns_more_of_them_and_may_keep_the_answer(trained: Trained) -> None:
    tables = {
        on: api.attack(trained["prc"], limit=30, epsilons=(16,), steps=3, on=on).table
        for on in ("answer", "routes", "routes-keeping-answer")
    }
    same = {on: value(table, "top2_set_match", 16) for on, table in tables.items()}
    answers = {on: value(table, "prediction_agreement", 16) for on, table in tables.items()}
    assert set(tables["routes"]["view"]) == {"attack_routes"}
    assert same["routes"] < same["answer"]
    assert answers["answer"] < answers["routes-keeping-answer"]


def value(table: pd.DataFrame, metric: str, severity: float) -> float:
    rows = table[
        (table["metric"] == metric) & (table["severity"] == severity) & (table["null"].fillna("") == "")
    ]
    return float(rows["value"].mean())


def test_the_answer_goes_and_signs_at_random_leave_it(trained: Trained, tmp_path: Path) -> None:
    out, at_once = tmp_path / "out", ["--limit", "30", "--epsilons", "0,16", "--steps", "3"]
    result = run("attack", trained["prc"], *at_once, "--out", out)
    assert result.exit_code == 0, result.output
    attacked = pd.read_csv(out / "table.csv")
    sidecar = json.loads((out / "table.json").read_text())
    assert sidecar["severity_unit"] == "ε in 1/255" and sidecar["request"]["direction"] == "gradient"
    assert set(attacked["view"]) == {"attack"} and set(attacked["severity"]) == {0, 16}
    assert value(attacked, "top1_match", 0) == value(attacked, "prediction_agreement", 0) == 1
    assert {path.name for path in (out / "figures").iterdir()} == {"routing.png", "output.png"}
    random = api.attack(trained["prc"], limit=30, epsilons=(0, 16), direction="random").table
    assert set(random["view"]) == {"random_signs"}
    assert value(attacked, "prediction_agreement", 16) < value(random, "prediction_agreement", 16)
    assert value(random, "accuracy", 0) == pytest.approx(value(attacked, "accuracy", 0))


def test_images_without_labels_leave_the_class_that_they_are_given(tmp_path: Path) -> None:
    one = checkpoint()
    blind = api.attack(one, data="digits", limit=12, epsilons=(0, 8), steps=2).table
    assert value(blind, "prediction_agreement", 8) <= value(blind, "prediction_agreement", 0) == 1


def test_what_is_refused(trained: Trained, tmp_path: Path) -> None:
    assert "--epsilons takes numbers from 0 to 255" in refused("attack", trained["prc"], "--epsilons", "-1")
    assert "--steps takes a whole number" in refused("attack", trained["prc"], "--steps", "0")
    assert "direction" in refused("attack", trained["prc"], "--direction", "up")

    class Opaque(Vmoe):
        loss_gradient = None  # type: ignore[assignment]

    with pytest.raises(UserError, match="gives no gradient of its loss"):
        api.attack(checkpoint(adapter=Opaque), data="digits", limit=4)


def test_which_attacks_on_routes_are_refused() -> None:
    class Unsteered(Vmoe):
        routing_gradient = None  # type: ignore[assignment]

    with pytest.raises(UserError, match="Random signs follow no gradient"):
        api.attack(checkpoint(), data="digits", limit=4, on="routes", direction="random")
    with pytest.raises(UserError, match="gives no gradient of its routing"):
        api.attack(checkpoint(adapter=Unsteered), data="digits", limit=4, on="routes")
    with pytest.raises(UserError, match="is it known how far a set of experts"):
        api.attack(checkpoint(router="soft_moe"), data="digits", limit=4, on="routes")
    with pytest.raises(UserError, match="weights"):
        api.attack(checkpoint(), data="digits", limit=4, on="weights")
