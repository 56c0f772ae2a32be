"""Optimizers and schedules: closed forms, and the released programs' numbers."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.config import OptimizerConfig, ScheduleConfig, load
from moeprobe.models.nn.capture import capture, moe_layers
from moeprobe.models.training.objectives.balanced import Balanced
from moeprobe.models.training.optimize import (
    clip,
    make_optimizer,
    make_schedule,
    supervised_loss,
    total_loss,
    total_steps,
)
from tests.golden import assert_golden, golden
from tests.models.nn.released import to_state_dict
from tests.models.nn.test_vit import released_images, released_model
from tests.models.training.deciding import random_views

ADAM = OptimizerConfig(name="adamw", learning_rate=3e-3, weight_decay=0.1, clip_norm=1.0)
SGD = OptimizerConfig(name="momentum", learning_rate=3e-3, momentum=0.9, clip_norm=10.0)


def with_noise(layers: Mapping[str, nn.Module], draws: Mapping[str, Any], step: int) -> list[Any]:
    """Give each router the standard normal draws of one step of the golden run."""
    handles = []
    for name, layer in layers.items():
        noise = torch.from_numpy(draws[f"step{step}/standard_normal/{name.rpartition('.')[2]}"])
        router: Any = layer.router
        handles.append(router.register_forward_pre_hook(lambda _m, inputs, noise=noise: (inputs[0], noise)))
    return handles


def without_key_biases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A key's bias has no true gradient, and Adam makes steps of its rounding: leave it out."""

    def kept(name: str, value: Tensor) -> Tensor:
        return torch.cat(value.chunk(3)[::2]) if name.endswith("qkv.bias") else value

    return {name: kept(name, value) for name, value in state.items()}


@pytest.mark.golden
@pytest.mark.parametrize(
    ("run", "optimizer_config", "schedule_name"),
    [("opt_adam_pretrain", ADAM, "linear"), ("opt_sgd_finetune", SGD, "cosine")],
)
def test_released_training_steps(run: str, optimizer_config: OptimizerConfig, schedule_name: Any) -> None:
    """Four steps, through the same functions as the training loop."""
    expected, about = golden(f"model_small/{run}.npz"), golden(f"model_small/{run}.json")
    model = released_model().train()
    optimizer = make_optimizer(model, optimizer_config)
    settings = ScheduleConfig(name=schedule_name, warmup_steps=2, end_value=1e-5)
    schedule = make_schedule(optimizer, settings, total_steps=10)
    objective, views = Balanced(), random_views()
    labels = torch.from_numpy(expected["labels"])
    kind = about["loss"].removesuffix("_xent")
    for step, wanted in enumerate(about["steps"]):
        handles = with_noise(moe_layers(model), expected, step)
        with capture(model) as decisions:
            logits = model(released_images())
        main = supervised_loss(logits, labels, kind)
        loss = total_loss(main, objective.terms(decisions, views))
        schedule.step_update(step)
        optimizer.zero_grad()
        loss.backward()
        norm = clip(model, norm=optimizer_config.clip_norm)
        optimizer.step()
        for handle in handles:
            handle.remove()
        assert_golden(loss, wanted["loss"])
        assert_golden(norm, wanted["grad_norm"])
        rates = [group["lr"] for group in optimizer.param_groups]
        np.testing.assert_allclose(rates, wanted["learning_rate"] * 2, rtol=1e-6)
        after = f"params_after_{step + 1}/"
        arrays = {name.removeprefix(after): v for name, v in expected.items() if name.startswith(after)}
        if arrays:
            parameters = without_key_biases(dict(model.named_parameters()))
            reference = without_key_biases(to_state_dict(arrays))
            assert set(parameters) == set(reference)
            for name, value in parameters.items():
                assert_golden(value, reference[name])
            moved = without_key_biases(to_state_dict(golden("model_small/params.npz")))
            if step == 3:
                # The comparison that counts: what four steps changed, against what they should have changed.
                for name, value in parameters.items():
                    change, right = value.detach() - moved[name], reference[name] - moved[name]
                    kept = ~right.isnan()
                    assert (change - right)[kept].abs().max() <= 1e-2 * right[kept].abs().max(), name


def expected_rate(step: int, *, peak: float, end: float, warmup: int, total: int, kind: str) -> float:
    if step < warmup:
        return peak * step / warmup
    share = (step - warmup) / (total - warmup)
    left = 1 - share if kind == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return end + (peak - end) * left


def rates(peak: float, settings: ScheduleConfig, *, total: int, steps: list[int]) -> list[float]:
    model = nn.Linear(2, 2)
    optimizer = make_optimizer(model, OptimizerConfig(name="momentum", learning_rate=peak))
    schedule = make_schedule(optimizer, settings, total_steps=total)
    found = []
    for step in steps:
        schedule.step_update(step)
        assert len({group["lr"] for group in optimizer.param_groups}) == 1
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 7), (3, 20), (1, 2), (50, 51)])
def test_schedules_are_their_closed_form(kind: Any, warmup: int, total: int) -> None:
    settings = ScheduleConfig(name=kind, warmup_steps=warmup, end_value=1e-3)
    steps = list(range(total))
    wanted = [expected_rate(s, peak=0.3, end=1e-3, warmup=warmup, total=total, kind=kind) for s in steps]
    np.testing.assert_allclose(rates(0.3, settings, total=total, steps=steps), wanted, rtol=1e-12)
    if warmup:
        assert wanted[0] == 0 and wanted[warmup] == 0.3


@pytest.mark.golden
@pytest.mark.parametrize(
    ("recipe", "curve"),
    [("vmoe-s32-imagenet224-baseline", "pretrain"), ("vmoe-s32-imagenet384-baseline", "finetune")],
)
def test_released_learning_rates(recipe: str, curve: str) -> None:
    """The curve of each recipe at the steps where the released program's was read."""
    arrays = golden("configs/lr_schedules.npz")
    settings = load(recipe)
    assert settings.steps is not None
    if curve == "pretrain":
        assert settings.steps == arrays["pretrain_total"]
    steps = [int(step) for step in arrays[f"{curve}_step"]]
    found = rates(settings.optimizer.learning_rate, settings.schedule, total=settings.steps, steps=steps)
    assert_golden(found, arrays[f"{curve}_lr"])


def test_weight_decay_is_decoupled_and_for_kernels_alone() -> None:
    """Without a gradient to speak of, a kernel shrinks by lr · decay and nothing else moves."""
    model = released_like()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = make_optimizer(model, OptimizerConfig(name="adamw", learning_rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = dict(model.named_parameters())
    torch.testing.assert_close(after["0.weight"], before["0.weight"] * (1 - 0.1 * 0.5))
    assert all(torch.equal(after[name], before[name]) for name in before if name != "0.weight")


def released_like() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


def test_momentum_is_heavy_ball() -> None:
    """v <- .9 v + g, p <- p - lr v; Nesterov's would step by g + .9 v."""
    model = nn.Linear(1, 1, bias=False)
    start = float(model.weight.detach())
    optimizer = make_optimizer(model, OptimizerConfig(name="momentum", learning_rate=0.1, momentum=0.9))
    for gradient in (1.0, 2.0):
        model.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
    assert model.weight.item() == pytest.approx(start - 0.1 * 1.0 - 0.1 * (0.9 * 1.0 + 2.0))


@pytest.mark.parametrize(("config", "kind"), [(ADAM, torch.optim.AdamW), (SGD, torch.optim.SGD)])
def test_updates_in_one_pass_are_those_of_the_formula(config: OptimizerConfig, kind: Any) -> None:
    """torch's fused kernel, against its loop over the parameters with the same groups."""
    torch.manual_seed(0)
    models = [released_like(), released_like()]
    models[1].load_state_dict(models[0].state_dict())
    fused = make_optimizer(models[0], config)
    assert type(fused) is kind
    assert all(group["fused"] for group in fused.param_groups)
    looped = make_optimizer(models[1], config)
    for group in looped.param_groups:
        group.update(fused=False, foreach=False)
    for _ in range(5):
        gradients = [torch.randn_like(p) for p in models[0].parameters()]
        for model, optimizer in zip(models, (fused, looped), strict=True):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_an_optimizer_of_timm_without_a_fused_kernel_is_made_as_ever() -> None:
    optimizer = make_optimizer(released_like(), OptimizerConfig(name="lamb"))
    assert "fused" not in optimizer.param_groups[0]


def test_gradients_are_clipped_to_a_global_norm() -> None:
    model = nn.Linear(2, 1, bias=False)
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert clip(model, norm=None).item() == pytest.approx(5.0)
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, torch.tensor([[3.0, 4.0]]))
    assert clip(model, norm=1.0).item() == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("limit", [None, 4.9, 5.0, 5.000002, math.inf])
def test_clipping_is_that_of_torch_to_the_bit(limit: float | None) -> None:
    """Also at the limit, where torch divides by the norm plus 1e-6."""
    model, other = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    rows = torch.tensor([[3.0, 4.0]])
    model(rows).sum().backward()
    clip(model, norm=limit)
    other(rows).sum().backward()
    nn.utils.clip_grad_norm_(other.parameters(), math.inf if limit is None else limit)
    assert model.weight.grad is not None
    assert other.weight.grad is not None
    assert torch.equal(model.weight.grad, other.weight.grad)


def test_a_norm_that_is_no_number_spreads_to_all_gradients() -> None:
    model = nn.Linear(2, 1, bias=False)
    (model.weight * torch.tensor([[math.nan, 1.0]])).sum().backward()
    clip(model, norm=1.0)
    assert model.weight.grad is not None
    assert bool(model.weight.grad.isnan().all())


def test_supervised_losses() -> None:
    """Softmax: -Σ t log p. Sigmoid: summed over the classes, not averaged. Both: mean over rows, soft targets."""
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(5, 4)), rng.dirichlet(np.ones(4), size=5)
    softmax, sigmoid = 0.0, 0.0
    for row, target in zip(logits, targets, strict=True):
        normaliser = math.log(sum(math.exp(value) for value in row))
        for value, share in zip(row, target, strict=True):
            softmax -= share * (value - normaliser) / 5
            probability = 1 / (1 + math.exp(-value))
            sigmoid -= (share * math.log(probability) + (1 - share) * math.log(1 - probability)) / 5
    tensors = torch.from_numpy(logits), torch.from_numpy(targets)
    assert supervised_loss(*tensors, "softmax").item() == pytest.approx(softmax, rel=1e-12)
    assert supervised_loss(*tensors, "sigmoid").item() == pytest.approx(sigmoid, rel=1e-12)


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 2}, 20),
        ({"epochs": 0.29}, 2),
        ({"epochs": 0.01}, 1),
        ({"epochs": 1.7}, 17),
    ],
)
def test_lengths(lengths: dict[str, Any], steps: int) -> None:
    """105 images in batches of 10 are 10 steps: what is left over is dropped."""
    given = {"steps": None, "epochs": None} | lengths
    assert total_steps(num_images=105, batch_size=10, **given) == steps


def test_epochs_are_not_a_victim_of_rounding() -> None:
    assert 0.29 * 100 < 29
    assert total_steps(steps=None, epochs=0.29, num_images=1000, batch_size=10) == 29


def test_what_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(UserError, match="9 images, fewer than one batch of 10"):
        total_steps(steps=3, epochs=None, num_images=9, batch_size=10)
    model = nn.Linear(2, 2)
    optimizer = make_optimizer(model, OptimizerConfig())
    with pytest.raises(
        UserError, match=r"warm-up of 5 steps does not fit a run of 5: lower schedule\.warmup"
    ):
        make_schedule(optimizer, ScheduleConfig(warmup_steps=5), total_steps=5)
    with pytest.raises(UserError, match=r"no optimizer 'adamww'\. Did you mean 'adamw'"):
        make_optimizer(model, OptimizerConfig(name="adamww"))
