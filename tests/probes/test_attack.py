"""Attacks: the gradient is the loss's own, the pixels stay near, and the answer goes before the routing does."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

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
from moeprobe.inputs.images import Framing
from moeprobe.probes.attack.ascent import ascend, at_random, random_start, worst_of
from moeprobe.probes.attack.objectives import (
    RaisedObjective,
    leaving,
    remaining_margins,
    sending,
    steering,
)
from moeprobe.probes.engine.run_spec import choose_images
from moeprobe.results.columns import COLUMNS
from moeprobe.routing.capabilities import Differentiable, Steerable
from moeprobe.routing.gradients import gradient_of
from moeprobe.routing.record import RoutingTrace
from tests.adapters import zoo
from tests.commands import Trained, refused
from tests.routing.routings import checkpoint, digits, routing, tiny, with_numpy_weights


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
    found = ascend(partial(model.loss_gradient, targets=targets), pixels, epsilon=epsilon, steps=3)
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


def norms(change: Tensor, norm: str) -> Tensor:
    return change.flatten(1).norm(dim=1) if norm == "l2" else change.flatten(1).abs().amax(1)


def test_random_directions_have_the_norm_and_belong_to_the_image() -> None:
    pixels = images(3)
    pixels[0, :, :16] = 0  # half of these values cannot go down
    found = at_random(pixels, ["a", "b", "c"], epsilon=1.5, seed=0, norm="l2")
    again = at_random(pixels[[2, 0]], ["c", "a"], epsilon=1.5, seed=0, norm="l2")
    torch.testing.assert_close(again, found[[2, 0]])
    np.testing.assert_allclose(norms(found - pixels, "l2"), 1.5, rtol=1e-5)
    assert found.min() >= 0 and found.max() <= 1


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_starts_are_all_over_the_ball(norm: str) -> None:
    pixels, epsilon = torch.full((500, 1, 1, 2), 0.5, dtype=torch.float64), 0.1
    names = [str(number) for number in range(500)]
    starts = random_start(pixels, names, epsilon=epsilon, seed=0, norm=norm, restart=1)
    lengths = norms(starts - pixels, norm) / epsilon
    # Evenly in an area, so that its square is even from 0 to 1.
    assert lengths.max() <= 1 + 1e-9 and (lengths**2).mean().item() == pytest.approx(0.5, abs=0.05)
    assert not starts.equal(random_start(pixels, names, epsilon=epsilon, seed=0, norm=norm, restart=2))


def test_of_several_ascents_the_worst_of_each_image_counts() -> None:
    model: Any = checkpoint().model
    pixels, targets, names = images(4), torch.tensor([0, 1, 2, 3]), ["a", "b", "c", "d"]
    objective = RaisedObjective(
        partial(model.loss_gradient, targets=targets), lambda at: loss(model, at, targets)
    )
    settings: dict[str, Any] = {"epsilon": 4 / 255, "norm": "linf"}
    found = worst_of(objective, pixels, names, steps=2, restarts=2, seed=0, **settings)
    starts = [None, *(random_start(pixels, names, seed=0, restart=number, **settings) for number in (1, 2))]
    ascents = [ascend(objective.gradient, pixels, steps=2, start=start, **settings) for start in starts]
    losses = torch.stack([objective.values(one) for one in ascents])
    # The worst of all are a batch of their own, whose sums may differ in their last bits.
    torch.testing.assert_close(objective.values(found), losses.amax(0), rtol=1e-6, atol=1e-6)
    assert len(set(losses.argmax(0).tolist())) > 1


class Linear:
    """A router whose tokens are the columns of an image, with logits that are linear in a column's pixels.

    All are 0 for gray ones, so that experts are close to each other there.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def trace(
        self, pixels: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor, RoutingTrace]:
        gates = ((pixels - 0.5).flatten(1, 2).transpose(1, 2) @ self.weight.T).softmax(-1)
        selected = gates.topk(1).indices.to(torch.int16)
        layer = routing(len(pixels), grid=(1, gates.shape[1]), prefix=0, num_experts=gates.shape[2], top_k=1)
        valid = torch.ones(gates.shape[:2], dtype=torch.bool)
        fields: dict[str, Any] = {
            "gates": gates,
            "selected": selected,
            "processed": selected >= 0,
            "valid": valid,
        }
        return pixels.new_zeros(len(pixels), 2), RoutingTrace(
            {"linear": dataclasses.replace(layer, **fields)}
        )

    def routing_gradient(
        self, pixels: Tensor, objective: Any, *, layers: Sequence[str] | None = None
    ) -> Tensor:
        return gradient_of(lambda at: objective(*self.trace(at)), pixels)

    def first_choices(self, pixels: Tensor) -> Tensor:
        return self.trace(pixels)[1].layers["linear"].selected[..., 0].long()


@pytest.mark.parametrize("aim", ["leave", "expert 0"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_routes_of_a_linear_router_change_from_the_smallest_epsilon_on(norm: str, aim: str) -> None:
    random = torch.Generator().manual_seed(0)
    # With l2 an image of one column: several would share epsilon.
    shape = (4, 3, 5, 16) if norm == "linf" else (64, 3, 5, 1)
    pixels = 0.4 + 0.2 * torch.rand(*shape, generator=random, dtype=torch.float64)
    weight = torch.randn(2, 15, generator=random, dtype=torch.float64)
    model: Any = Linear(weight)
    clean = model.trace(pixels)[1]
    # Of two experts: a token turns where its margin is undone by the longest step against w_1 - w_2 in the dual norm.
    logits = (pixels - 0.5).flatten(1, 2).transpose(1, 2) @ weight.T
    difference = weight[0] - weight[1]
    dual = difference.abs().sum() if norm == "linf" else difference.norm()
    critical = (logits[..., 0] - logits[..., 1]).abs() / dual
    if aim == "leave":
        value, may_turn = leaving(clean), torch.ones_like(critical, dtype=torch.bool)
    else:
        value = sending({"linear": torch.zeros(len(pixels), dtype=torch.int64)})
        may_turn = model.first_choices(pixels) == 1
    gradient = steering(model, value, layers=None).gradient
    for epsilon in critical.flatten().quantile(torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)).tolist():
        moved = ascend(gradient, pixels, epsilon=epsilon, steps=8, norm=norm)
        turned = model.first_choices(moved) != model.first_choices(pixels)
        assert turned[~may_turn | (critical > epsilon * (1 + 1e-6))].sum() == 0 < turned.sum()
        assert turned[may_turn & (critical < epsilon * (1 - 1e-6))].all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("aim", ["leave", "expert 0"])
def test_what_brute_force_reaches_on_two_pixels_the_ascent_reaches(norm: str, aim: str) -> None:
    """Of three experts: every change of two pixels on a fine grid is tried, and no closed form is needed."""
    random = torch.Generator().manual_seed(1)
    pixels = 0.4 + 0.2 * torch.rand(60, 1, 2, 1, generator=random, dtype=torch.float64)
    model: Any = Linear(torch.randn(3, 2, generator=random, dtype=torch.float64))
    epsilon, before = 0.05, model.first_choices(pixels)[:, 0]
    steps = torch.linspace(-epsilon, epsilon, 81, dtype=torch.float64)
    changes = torch.cartesian_prod(steps, steps)
    length = changes.norm(dim=1) if norm == "l2" else changes.abs().amax(1)

    def reached(first: Tensor) -> Tensor:
        return first != before[:, None] if aim == "leave" else first == 0

    def brute(largest: float) -> Tensor:
        tried = pixels[:, None] + changes[length <= largest * (1 + 1e-9)].reshape(-1, 1, 2, 1)
        first = model.first_choices(tried.flatten(0, 1))[:, 0].unflatten(0, (len(pixels), -1))
        return reached(first).any(1)

    value = (
        leaving(model.trace(pixels)[1])
        if aim == "leave"
        else sending({"linear": torch.zeros(len(pixels), dtype=torch.int64)})
    )
    names = [str(number) for number in range(len(pixels))]
    moved = worst_of(
        steering(model, value, layers=None), pixels, names,
        epsilon=epsilon, steps=40, norm=norm, restarts=4, seed=0,
    )  # fmt: skip
    by_ascent = reached(model.first_choices(moved)).squeeze(1)
    assert by_ascent[brute(0.95 * epsilon)].all() and not by_ascent[~brute(epsilon)].any()
    # What can be reached depends on the image, and is not there already.
    assert (by_ascent & ~reached(before[:, None])[:, 0]).sum() > 0 and not by_ascent.all()


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
    assert set(tables["routes"]["view"]) == {"attack_routes", "random_signs"}
    assert same["routes"] < same["answer"]
    assert answers["answer"] < answers["routes-keeping-answer"]


def value(table: pd.DataFrame, metric: str, severity: float, view: str = "") -> float:
    """The mean over layers, of one view: the first, where none is named."""
    rows = table[
        (table["metric"] == metric)
        & (table["severity"] == severity)
        & (table["null"].fillna("") == "")
        & (table["view"] == (view or table["view"].iloc[0]))
        & table["tokens"].fillna("").isin(["patch", ""])
    ]
    assert len(rows), (metric, view)
    return float(rows["value"].mean())


def test_the_rows_of_a_plain_attack_are_pinned() -> None:
    """As they were before random changes stood beside them; other rows may be added."""
    model = with_numpy_weights(checkpoint())
    table = api.attack(model, data="digits", limit=6, epsilons=(0, 8), steps=2, device="cpu").table
    rows = table[(table["view"] == "attack") & ~table["metric"].isin(["busiest_expert", "dropped"])]
    words = ["layer", "router", "view", "severity", "tokens", "metric", "null", "expert", "images", "trials"]
    digest = hashlib.sha256(rows[words].to_csv(index=False).encode()).hexdigest()
    assert digest == "e0809fd609cc19cf1d837806cfe5884282378bd9f9afde27607317a94608cfaa"
    expected = {
        "top1_match": 0.802083,
        "top2_set_match": 0.651042,
        "gate_highest": 0.607818,
        "prediction_agreement": 0,
    }
    assert {name: value(rows, name, 8) for name in expected} == pytest.approx(expected, abs=1e-4)
    assert list(table.columns) == list(COLUMNS)


def test_attacks_on_the_load_fill_the_expert_and_overflow_it() -> None:
    limited = with_numpy_weights(checkpoint(trained_capacity=True, eval_capacity_factor=1.0))

    def attacked(on: str, **arguments: Any) -> pd.DataFrame:
        common: dict[str, Any] = {"data": "digits", "limit": 8, "epsilons": (8,), "steps": 3, "device": "cpu"}
        return api.attack(limited, on=on, **common, **arguments).table

    overload = attacked("overload")
    for metric in ("busiest_expert", "dropped"):
        assert value(overload, metric, 8) > value(overload, metric, 8, "random_signs")
    sent = attacked("one-expert", expert=1)
    sent = sent[sent["expert"] == 1]
    assert value(sent, "expert_share", 8) > 1.3 * value(sent, "expert_share", 8, "random_signs")
    joint, answer = attacked("joint"), attacked("answer")
    assert value(joint, "prediction_agreement", 8) < value(joint, "prediction_agreement", 8, "random_signs")
    assert value(joint, "top2_set_match", 8) < value(answer, "top2_set_match", 8)


@pytest.mark.slow
@pytest.mark.promise
def test_what_is_crafted_on_one_is_shown_to_the_other() -> None:
    models = [checkpoint("a"), checkpoint("b", seed=1)]
    common: dict[str, Any] = {"data": "digits", "limit": 8, "epsilons": (0, 16), "steps": 2}
    result = api.attack(models, transfer=True, attribute=True, **common)
    of_a = result.table[result.table["checkpoint"] == "a"]
    assert set(of_a["view"]) == {"attack", "attack_from_b", "random_signs"}
    assert set(result.plot()) == {"routing", "output", "attribution", "transfer"}
    # Digits have ten classes and these models none that are known: their answers are kept from.
    chosen = choose_images(digits(), limit=8, seed=0)
    framing = Framing(32)
    batch = torch.stack([framing.clean(digits().example(index).image).pixels for index in chosen])
    first, second = (cast(Vmoe, one.model) for one in models)
    answers = [scores_of(model, batch).argmax(-1) for model in (first, second)]
    crafted = ascend(partial(second.loss_gradient, targets=answers[1]), batch, epsilon=16 / 255, steps=2)
    same = (scores_of(first, crafted).argmax(-1) == answers[0]).double().mean().item()
    assert value(of_a, "prediction_agreement", 16, "attack_from_b") == pytest.approx(same)
    # The clean routing replayed on crafted pixels.
    clean = first.trace(batch)
    own = ascend(partial(first.loss_gradient, targets=answers[0]), batch, epsilon=16 / 255, steps=2)
    replayed = first.replay(own, clean[1]).softmax(-1).gather(1, answers[0][:, None]).mean().item()
    assert value(of_a, "class_probability_perturbed_clean", 16) == pytest.approx(replayed, abs=1e-5)
    assert value(of_a, "class_probability_switching", 0) == 0


def scores_of(model: Vmoe, pixels: Tensor) -> Tensor:
    scores = model.trace(pixels)[0]
    assert scores is not None
    return scores


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"direction": "up"}, "'up'"),
        ({"norm": "l1"}, "'l1'"),
        ({"on": "weights"}, "'weights'"),
        ({"restarts": -1}, "restarts takes a whole number from 0"),
        ({"norm": "l2", "epsilons": (float("inf"),)}, "epsilons takes numbers of at least 0"),
        ({"on": "one-expert"}, "needs expert (a number from 0), and no other on takes it"),
        ({"expert": 1}, "needs expert (a number from 0), and no other on takes it"),
        ({"on": "one-expert", "expert": 99}, "expert takes 0 to 7 for a"),
        ({"direction": "random", "restarts": 2}, "leave out restarts"),
        ({"direction": "random", "transfer": True}, "leave out transfer"),
        ({"transfer": True}, "name at least two"),
        ({"attribute": True, "gates": "half"}, "recomputed or replayed"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        api.attack(checkpoint(), data="digits", limit=4, **arguments)
    assert sentence in str(error.value)


def test_models_that_cannot_be_overloaded_or_shown_the_same_images() -> None:
    with pytest.raises(UserError, match="experts choose their tokens"):
        api.attack(checkpoint(router="softmax_expert_choice"), data="digits", limit=4, on="overload")
    small = dataclasses.replace(checkpoint("b"), framing=Framing(16))
    with pytest.raises(UserError, match="of different sizes or crops"):
        api.attack([checkpoint(), small], data="digits", limit=4, transfer=True)


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

    with pytest.raises(UserError, match="Random changes follow no gradient"):
        api.attack(checkpoint(), data="digits", limit=4, on="routes", direction="random")
    with pytest.raises(UserError, match="gives no gradient of its routing"):
        api.attack(checkpoint(adapter=Unsteered), data="digits", limit=4, on="routes")
    with pytest.raises(UserError, match="is it known how far a set of experts"):
        api.attack(checkpoint(router="soft_moe"), data="digits", limit=4, on="routes")
    with pytest.raises(UserError, match="weights"):
        api.attack(checkpoint(), data="digits", limit=4, on="weights")
