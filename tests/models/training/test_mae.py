"""Masked autoencoding: the loss against a loop, what the encoder sees, and a pretraining to start from."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import read_tensors
from moeprobe.models.config import MaeConfig, ModelConfig
from moeprobe.models.nn import mae
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import capture
from moeprobe.models.nn.plans import DispatchPlan
from tests.golden import assert_golden
from tests.models.training.test_resume import at_forward, press_ctrl_c
from tests.models.training.tiny import finish, results, trainer

SIZES = {"image_size": 16, "patch_size": 4, "num_experts": 4}
MAE = {"mask": 0.75, "width": 24, "depth": 1, "num_heads": 2}
PRETRAIN: dict[str, Any] = {
    "mae": MAE,
    "objective": {"name": "variation", "image_epsilon": 0.1},
    "model": SIZES | {"group_images": 2},
    "eval_batch_size": 6,
}


def encoder(**changes: Any) -> Any:
    torch.manual_seed(0)
    settings = {"name": "vmoe_tiny_patch8_32", "num_classes": 3, "group_images": 1} | SIZES | changes
    return build_model(ModelConfig.model_validate(settings)).eval()


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def visible(count: int = 3) -> torch.Tensor:
    return torch.from_numpy(mae.draw_visible(16, 4, np.random.default_rng(2), rows=count))


def test_the_loss_is_a_loop_over_hidden_patches() -> None:
    pixels = torch.randn(3, 16, 48, generator=torch.Generator().manual_seed(3))
    found = mae.reconstruction_loss(pixels, images(), visible())
    for image in range(3):
        errors = []
        for patch in range(16):
            if patch in visible()[image]:
                continue
            top, left = 4 * (patch // 4), 4 * (patch % 4)
            wanted = [
                images()[image, channel, top + row, left + column].item()
                for row in range(4) for column in range(4) for channel in range(3)
            ]  # fmt: skip
            mean = sum(wanted) / 48
            deviation = math.sqrt(sum((one - mean) ** 2 for one in wanted) / 47 + 1e-6)
            errors.append(
                sum(
                    (pixels[image, patch, place].item() - (one - mean) / deviation) ** 2
                    for place, one in enumerate(wanted)
                )
                / 48
            )
        assert len(errors) == 12
        assert_golden(found[image], np.mean(errors))


def test_what_is_hidden_reaches_nothing_of_the_encoder() -> None:
    model, seen = encoder(), visible()
    hidden = torch.ones(3, 16).scatter(1, seen, 0.0).bool()
    changed = images()
    for image, patch in hidden.nonzero().tolist():
        top, left = 4 * (patch // 4), 4 * (patch % 4)
        changed[image, :, top : top + 4, left : left + 4] = 7.0
    with torch.no_grad():
        assert torch.equal(mae.encode(model, images(), seen), mae.encode(model, changed, seen))
        assert not torch.equal(model.forward_features(images()), model.forward_features(changed))


def test_with_all_patches_it_is_the_encoder_as_it_is() -> None:
    for changes in ({}, {"head": "gap"}):
        model, every = encoder(**changes), torch.arange(16).expand(3, -1)
        with torch.no_grad():
            torch.testing.assert_close(mae.encode(model, images(), every), model.forward_features(images()))


def test_the_capacity_follows_the_visible_tokens() -> None:
    model = encoder(capacity_factor=1.0, capacity_multiple_of=1, top_k=1).train()
    with capture(model) as decisions:
        mae.encode(model, images(), visible())
    for decision in decisions.values():
        # The class token and 4 of 16 patches, for 4 experts.
        assert isinstance(decision.plan, DispatchPlan)
        assert decision.gates.shape == (3, 5, 4) and decision.plan.capacity == math.ceil(5 / 4)


def test_the_decoder_puts_tokens_where_they_were() -> None:
    """Without blocks each patch is drawn from its own token and place alone."""
    model = encoder()
    decoder = mae.Decoder(model, MaeConfig(width=24, depth=1, num_heads=2)).eval()
    decoder.blocks = torch.nn.Sequential()
    tokens, seen = torch.randn(3, 5, 64), visible()
    with torch.no_grad():
        pixels = decoder(tokens, seen)
        embedded = decoder.embed(tokens[:, 1:])
        for image in range(3):
            for patch in range(16):
                place = (seen[image] == patch).nonzero().flatten().tolist()
                token = embedded[image, place[0]] if place else decoder.mask_token
                expected = decoder.head(decoder.norm(token + decoder.positions[patch]))
                torch.testing.assert_close(pixels[image, patch], expected)


def test_masks_are_random_and_of_the_size_asked_for() -> None:
    drawn = mae.draw_visible(144, mae.num_visible(144, 0.75), np.random.default_rng(0), rows=400)
    assert drawn.shape == (400, 36) and (np.diff(drawn, axis=1) > 0).all()
    counts = np.bincount(drawn.ravel(), minlength=144)
    # 400 draws of a quarter: standard deviation √(400 · ¼ · ¾) = 8.7.
    assert np.abs(counts - 100).max() < 5 * 8.7
    assert mae.num_visible(64, 0.75) == 16 and mae.num_visible(10, 0.7) == 3
    assert mae.num_visible(16, 0.01) == 15
    with pytest.raises(UserError, match="leaves 0 of 16 patches visible"):
        mae.num_visible(16, 0.99)


@pytest.mark.slow
@pytest.mark.promise
def test_it_learns_and_leaves_an_encoder_to_start_from(tmp_path: Path) -> None:
    one = trainer(tmp_path / "pretrained", **PRETRAIN, steps=40)
    head = one.model.head.weight.clone()
    one.run()
    metrics = pd.read_csv(tmp_path / "pretrained" / "metrics.csv")
    assert metrics["val_loss"].iloc[-1] < 0.97 * metrics["val_loss"].iloc[0]
    assert {"train_token_inverse_variation", "train_main_loss"} <= set(
        metrics
    ) and "val_accuracy" not in metrics
    summary = json.loads((tmp_path / "pretrained" / "finished.json").read_text())
    assert summary["best_val_loss"] == pytest.approx(metrics["val_loss"].min())
    assert summary["val_loss"] == pytest.approx(metrics["val_loss"].iloc[-1])
    assert torch.equal(one.model.head.weight, head)
    tensors = read_tensors(tmp_path / "pretrained" / "last.safetensors")[0]
    assert not [name for name in tensors if name.startswith("decoder.")]
    fine = trainer(tmp_path / "fine", model=SIZES, initialise=str(tmp_path / "pretrained"))
    state = fine.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in tensors.items() if "head" not in name)
    assert not hasattr(fine.model, "decoder")
    fine.run()


def test_every_part_gets_a_gradient_but_the_head(tmp_path: Path) -> None:
    one = trainer(tmp_path, **PRETRAIN)
    one.train_step(next(one.batches()))
    without = {name for name, one in one.model.named_parameters() if one.grad is None or not one.grad.any()}
    # What a token leaves to one expert may leave another without any.
    assert {name for name in without if ".experts." not in name} == {"head.weight", "head.bias"}


def test_validation_is_the_same_for_any_batch(tmp_path: Path) -> None:
    losses = []
    for size in (2, 6):
        one = trainer(tmp_path / str(size), **PRETRAIN | {"eval_batch_size": size})
        losses.append(
            one.task.validate(
                one.val_data, one.framing, normalise=one.normalise, device=one.device, layout=one.layout
            )
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.promise
def test_a_pretraining_goes_on_exactly(tmp_path: Path) -> None:
    trainer(tmp_path / "whole", **PRETRAIN).run()
    one = trainer(tmp_path / "cut", **PRETRAIN)
    at_forward(one, 6, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    finish(tmp_path / "cut", **PRETRAIN)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mae": MAE | {"width": 22}},
            "mae.width must be a multiple of 4 and of mae.num_heads; got 22 and 2",
        ),
        ({"mae": MAE | {"mask": 0.95}}, "mae.mask 0.95 leaves 0 of 16 patches visible"),
        (
            {"objective": "prc"},
            "'prc' compares patches, and masked autoencoding hides patches .* another objective",
        ),
        ({"mixup": 0.2}, "mixup mixes labels, .* set mixup to 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        trainer(tmp_path, **{**PRETRAIN, **changes})
