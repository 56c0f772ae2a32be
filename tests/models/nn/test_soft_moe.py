"""Soft MoE against einsum in float64, and what it makes of its tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import ModelConfig, MoeConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.dispatch import run_experts
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.plans import SoftPlan
from moeprobe.models.nn.routers.soft_moe import SoftMoe
from moeprobe.models.nn.sparse import make_router
from tests.models.nn import references
from tests.routing.routings import tiny


def made(
    width: int = 6, num_experts: int = 4, slots: int = 2, noise_std: float = 0.0, seed: int = 0
) -> SoftMoe:
    torch.manual_seed(seed)
    router = SoftMoe(width, num_experts, num_tokens=8, slots=slots, noise_std=noise_std)
    router.scale.data.fill_(2.5)
    return router


def by_einsum(
    router: SoftMoe, tokens: np.ndarray, noise: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Dispatch and combine ``(G, S, E, C)`` as the paper writes them, with both sides normalized over D."""
    phi = router.phi.detach().double().numpy()
    phi = router.scale.item() * phi / np.sqrt((phi**2).sum(0, keepdims=True) + 1e-6)
    inputs = tokens / np.sqrt((tokens**2).sum(-1, keepdims=True) + 1e-6)
    logits = np.einsum("gsd,dec->gsec", inputs, phi) + noise
    exp = np.exp(logits)
    return exp / exp.sum(1, keepdims=True), exp / exp.sum((2, 3), keepdims=True)


@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 9),
    experts=st.integers(1, 12),
    slots=st.integers(1, 5),
    seed=st.integers(0, 9999),
)
@settings(deadline=None, max_examples=30)
def test_it_is_the_einsum(groups: int, size: int, experts: int, slots: int, seed: int) -> None:
    """Also with more slots than tokens, one expert, one token."""
    router = made(6, experts, slots, seed=seed).double().eval()
    networks = MlpExperts(experts, 6, 5).double()
    tokens = torch.randn(groups, size, 6, dtype=torch.float64)
    with torch.no_grad():
        decision = router(tokens)
        found = run_experts(networks, tokens.flatten(0, 1), decision.plan).view_as(tokens)
    dispatch, combine = by_einsum(router, tokens.numpy())
    assert isinstance(decision.plan, SoftPlan)
    np.testing.assert_allclose(decision.plan.dispatch.numpy(), dispatch, atol=1e-12)
    np.testing.assert_allclose(decision.plan.combine.numpy(), combine, atol=1e-12)
    np.testing.assert_allclose(decision.gates.numpy(), combine.sum(-1), atol=1e-12)
    inputs = np.einsum("gsec,gsd->gecd", dispatch, tokens.numpy())
    weights = [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in (networks.fc1, networks.fc2)
    ]
    outputs = np.zeros_like(inputs)
    for group, expert, slot in np.ndindex(inputs.shape[:3]):
        fc1, fc2 = ((weight[expert], bias[expert]) for weight, bias in weights)
        outputs[group, expert, slot] = references.mlp(inputs[group, expert, slot], fc1, fc2)
    np.testing.assert_allclose(found.numpy(), np.einsum("gsec,gecd->gsd", combine, outputs), atol=1e-10)


def test_a_decision_chooses_nothing() -> None:
    decision = made()(torch.randn(3, 8, 6))
    assert decision.logits.shape == (3, 8, 8)
    assert decision.selected.shape == decision.processed.shape == (3, 8, 0)
    assert decision.top_k is None and decision.scores is None


def test_noise_is_not_shared_out_over_the_experts() -> None:
    router = made(noise_std=0.5).train()
    tokens, noise = torch.randn(2, 8, 6), torch.randn(2, 8, 8)
    decision = router(tokens, noise)
    _, combine = by_einsum(router, tokens.double().numpy(), 0.5 * noise.view(2, 8, 4, 2).double().numpy())
    _, clean = by_einsum(router, tokens.double().numpy())
    np.testing.assert_allclose(decision.gates.detach().numpy(), combine.sum(-1), atol=1e-6)
    np.testing.assert_allclose(decision.clean_gates.detach().numpy(), clean.sum(-1), atol=1e-6)
    assert decision.noise_scale == 0.5


def test_tokens_may_stand_in_any_order() -> None:
    router, networks = made(), MlpExperts(4, 6, 5)
    tokens, order = torch.randn(2, 8, 6), torch.randperm(8)
    with torch.no_grad():
        one, other = (
            run_experts(networks, given.flatten(0, 1), router(given).plan).view_as(given)
            for given in (tokens, tokens[:, order])
        )
    torch.testing.assert_close(other, one[:, order], rtol=1e-5, atol=1e-6)


def test_bfloat16_rounds_what_would_travel() -> None:
    router, networks = made(), MlpExperts(4, 6, 5)
    tokens = torch.randn(2, 8, 6)
    with torch.no_grad():
        plan = router(tokens).plan
        found = run_experts(networks, tokens.flatten(0, 1), plan, bfloat16=True).view_as(tokens)
        exact = run_experts(networks, tokens.flatten(0, 1), plan).view_as(tokens)
        slots = torch.einsum("gsec,gsd->egcd", plan.dispatch, tokens.bfloat16().float())
        outputs = networks(slots.flatten(1, 2)).view_as(slots).bfloat16().float()
        expected = torch.einsum("gsec,egcd->gsd", plan.combine, outputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - exact).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("settings_of_moe", "num_tokens", "slots"),
    [
        ({}, 196, 6),  # 196 / 32 = 6.125
        ({"capacity_factor": 2.0}, 196, 12),  # 12.25
        ({"capacity_factor": 2.0}, 8, 1),  # 0.5, at least 1
        ({}, 7, 1),
        ({"capacity_rounding": "ceil", "capacity_multiple_of": 4}, 196, 8),  # 7, then a multiple of 4
        ({"router": {"name": "soft_moe", "slots": 100}}, 7, 100),
    ],
)
def test_slots_follow_from_the_tokens_of_an_image(
    settings_of_moe: dict[str, object], num_tokens: int, slots: int
) -> None:
    config = MoeConfig.model_validate({"num_experts": 32, "router": "soft_moe"} | settings_of_moe)
    router = make_router(config, 4, num_tokens=num_tokens)
    assert isinstance(router, SoftMoe)
    assert router.phi.shape == (4, 32, slots) and router.num_logits == 32 * slots
    assert router.experts_per_token(num_tokens) == pytest.approx(32 * slots / num_tokens)


@pytest.mark.parametrize(
    ("settings_of_moe", "sentence"),
    [
        ({"group_images": 2}, "mixes the tokens of one image: leave out model.group_images"),
        ({"eval_capacity_factor": 4.0}, "leave out model.eval_capacity_factor"),
        ({"capacity_factor": "none"}, "it cannot be none"),
        ({"router": {"name": "soft_moe", "slots": 0}}, "at least one slot; got 0"),
        ({"router": {"name": "soft_moe", "num_tokens": 3}}, "num_tokens is given as model.image_size"),
        ({"top_k": 2}, "no parameter of the router 'soft_moe' called 'top_k'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings_of_moe: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_router(MoeConfig.model_validate({"router": "soft_moe"} | settings_of_moe), 4, num_tokens=17)


def test_no_image_knows_of_another_however_they_are_grouped() -> None:
    model = tiny(router="soft_moe", head="gap")
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    groups: list[dict[str, Any]] = [
        {},
        {"group_images": 4},
        {"trained_capacity": True, "group_images": 2},
    ]
    adapters = [
        Vmoe(model, mean=(0.5,) * 3, std=(0.5,) * 3, router_name="soft_moe", **options) for options in groups
    ]
    assert [adapter.group_images for adapter in adapters] == [1, 1, 1]
    whole = adapters[1].trace(images)[1].layers["blocks.3"]
    alone = adapters[0].trace(images[2:3])[1].layers["blocks.3"]
    torch.testing.assert_close(whole.gates[2:3], alone.gates, rtol=1e-4, atol=1e-6)
    assert whole.num_prefix_tokens == 0 and whole.slot is not None and whole.slot.shape == (4, 16)


def config(**settings_of_model: object) -> ModelConfig:
    return ModelConfig.model_validate(
        {"num_classes": 10, "router": "soft_moe", "head": "gap"} | settings_of_model
    )


def save(folder: Path, described: ModelConfig) -> Path:
    torch.manual_seed(0)
    checkpoint.save(
        folder / "last.safetensors", build_model(described), config=described, training={}, class_names=()
    )
    return folder


def test_all_experts_are_active_and_run_once_per_slot(tmp_path: Path) -> None:
    """Of two such models one slot more costs E rows of an expert in each of two layers, and the mixing of them."""
    one, two = (
        inspect_checkpoint(save(tmp_path / str(slots), config(router={"name": "soft_moe", "slots": slots})))
        for slots in (2, 3)
    )
    assert one["active_parameters"] == one["parameters"] and one["tokens"] == 16
    # 8 rows of 64 × 128 and back, and for 16 tokens and 8 slots of width 64 the logits, the mixing and the way back.
    per_layer = 2 * 8 * 2 * 64 * 128 + 3 * 2 * 16 * 8 * 64
    assert two["flops_per_image"] - one["flops_per_image"] == 2 * per_layer
    assert [layer["capacity_factor"] for layer in one["layers"]] == [1.0, 1.0]  # 2 · 8 / 16


def test_another_resolution_keeps_its_slots_if_told_to(tmp_path: Path) -> None:
    source = save(tmp_path / "small", config())
    with pytest.raises(UserError, match=r"there, \(64, 8, 8\) here; set model.router.slots=2\."):
        checkpoint.initialise_from(build_model(config(image_size=64)), source)
    larger = build_model(config(image_size=64, router={"name": "soft_moe", "slots": 2}))
    checkpoint.initialise_from(larger, source)
    kept = checkpoint.load(source)[0].state_dict()
    for name in ("blocks.1.mlp.router.phi", "blocks.3.mlp.router.scale", "blocks.0.mlp.fc1.weight"):
        assert torch.equal(larger.state_dict()[name], kept[name])
    # The corners of the position embeddings stay where they are: there is no prefix.
    torch.testing.assert_close(larger.pos_embed[0, [0, 7, 56, 63]], kept["pos_embed"][0, [0, 3, 12, 15]])
    assert larger(torch.zeros(1, 3, 64, 64)).shape == (1, 10)
