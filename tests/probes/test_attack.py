"""Attacks: the gradient is the loss's own, the pixels stay near, and the answer goes before the routing does."""

import json
from collections.abc import Callable
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
from moeprobe.routing.capabilities import Differentiable
from tests.adapters import zoo
from tests.commands import Trained, refused, run
from tests.routing.routings import checkpoint, tiny


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
    found = ascended(model, pixels, targets, epsilon=epsilon, steps=3)
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
