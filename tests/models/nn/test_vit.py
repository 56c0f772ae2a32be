"""The sparse transformers: sizes, initialization, upcycling, and the released model's numbers."""

import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import moeprobe.models.nn.vit  # noqa: F401  (registers the models)
from moeprobe.errors import UserError
from moeprobe.models.config import MoeConfig
from moeprobe.models.config_files import list_architectures
from moeprobe.models.nn.capture import capture, moe_layers
from moeprobe.models.nn.plans import CapacityRule, DispatchPlan
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.sparse import make_sparse
from moeprobe.models.nn.vit import kernel_names, resize_position_embedding
from moeprobe.models.training.objectives.base import gshard_loss, importance_loss, load_loss
from tests.golden import GRADIENTS, assert_golden, golden
from tests.models.nn import references
from tests.models.nn.dense_form import dense
from tests.models.nn.released import to_state_dict

KEY_BIAS_TOLERANCE = 1e-6


def small_model(**settings: Any) -> VisionTransformer:
    """Build the model of the golden numbers: 4 blocks of width 64, MoE in 1 and 3, groups of 4 images."""
    defaults: dict[str, Any] = {
        "patch_size": 8,
        "num_experts": 4,
        "group_images": 4,
        "pre_logits": True,
        "eval_capacity_factor": 1.05,
    }
    return timm.create_model("vmoe_tiny_patch8_32", **{**defaults, **settings})


def released_model(**settings: Any) -> VisionTransformer:
    model = small_model(**settings)
    model.load_state_dict(to_state_dict(golden("model_small/params.npz")))
    return model


def released_images() -> torch.Tensor:
    return torch.from_numpy(golden("model_small/images.npz")["images"].transpose(0, 3, 1, 2).copy())


def inject_noise(model: VisionTransformer, noise: dict[str, Any]) -> None:
    """Give each router the standard normal draws of the golden run."""
    for name, layer in moe_layers(model).items():
        draws = torch.from_numpy(noise[name])
        layer.router.register_forward_pre_hook(lambda _module, inputs, draws=draws: (inputs[0], draws))


def auxiliary_loss(decisions: dict[str, Decision]) -> torch.Tensor:
    total = torch.tensor(0.0)
    for decision in decisions.values():
        load = load_loss(
            decision.logits,
            decision.noisy_logits,
            top_k=decision.selected.shape[-1],
            noise_scale=decision.noise_scale,
        )
        total = total + 0.005 * (importance_loss(decision.clean_gates) + load).mean()
    return total


@pytest.mark.golden
@pytest.mark.parametrize(
    "variant", ["det_cf0.5", "det_cf1.05", "det_cf1.05_bpr", "det_cf4.0", "det_k1_cf1.05"]
)
def test_released_forward(variant: str) -> None:
    expected = golden(f"model_small/{variant}.npz")
    setting = golden("model_small/summary.json")[variant]
    model = released_model(
        top_k=setting["config"].get("K", 2),
        eval_capacity_factor=setting["config"]["capacity_factor"],
        batch_priority=setting["config"]["batch_priority"],
    ).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 252_298
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: outputs.__setitem__(name, output)

    for index, block in enumerate(model.blocks):
        block.register_forward_hook(keep(f"block_out/{index}"))
        block.attn.register_forward_hook(keep(f"attn_out/{index}"))
        if f"moe_out/{index}" in expected:
            block.mlp.register_forward_hook(keep(f"moe_out/{index}"))
    model.norm.register_forward_hook(keep("encoder_norm_out"))
    model.fc_norm[0].register_forward_hook(keep("representation"))
    with torch.no_grad(), capture(model) as decisions:
        outputs["logits"] = model(released_images())
    for name, output in outputs.items():
        assert_golden(output, expected[name])
    for index, decision in ((int(name.split(".")[1]), d) for name, d in decisions.items()):
        assert_golden(decision.logits, expected[f"router_logits/{index}"])
        assert_golden(decision.gates, expected[f"router_softmax/{index}"])
        assert_golden(dense(decision.plan)[1].sum(-1), expected[f"combine_se/{index}"])
        assert isinstance(decision.plan, DispatchPlan)
        assert int((~decision.plan.kept).sum()) == expected[f"dropped_assignments/{index}"]
        assert decision.plan.capacity == expected[f"capacity/{index}"]
        importance = importance_loss(decision.clean_gates)
        assert_golden(importance, expected[f"metric/encoderblock_{index}/importance_loss"])
        assert_golden(gshard_loss(decision.gates), expected[f"metric/encoderblock_{index}/gshard_loss"])


@pytest.mark.golden
def test_released_training_step_gradients() -> None:
    expected = golden("model_small/train_sigmoid_xent.npz")
    model = released_model().train()
    noise = {f"blocks.{index}": expected[f"standard_normal/{index}"] for index in (1, 3)}
    inject_noise(model, noise)
    labels = torch.from_numpy(expected["labels"])
    with capture(model) as decisions:
        logits = model(released_images())
    assert_golden(logits, expected["logits"])
    main = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(-1).mean()
    auxiliary = auxiliary_loss(decisions)
    assert_golden(main, expected["metric/main_loss"])
    assert_golden(auxiliary, np.mean(expected["metric/auxiliary_loss"]))
    assert_golden(main + auxiliary, expected["total_loss"])
    (main + auxiliary).backward()
    gradients = to_state_dict(
        {k.removeprefix("grad/"): v for k, v in expected.items() if k.startswith("grad/")}
    )
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        if name.endswith("qkv.bias"):  # the key's part has no true gradient: rounding is all there is
            query, key, value = parameter.grad.chunk(3)
            wanted = gradients[name].chunk(3)
            assert (key - wanted[1]).abs().max() < KEY_BIAS_TOLERANCE
            assert_golden(torch.cat([query, value]), torch.cat([wanted[0], wanted[2]]), GRADIENTS)
        else:
            assert_golden(parameter.grad, gradients[name], GRADIENTS)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["7to12", "4to8", "4to7", "12to7", "7to4"])
def test_released_position_embedding_resize(name: str) -> None:
    arrays = golden("posemb/vit_zoom.npz")
    side = math.isqrt(arrays[f"{name}/out"].shape[1] - 1)
    source = torch.from_numpy(arrays[f"{name}/src"])
    resized = resize_position_embedding(source, num_prefix=1, rows=side, columns=side)
    assert_golden(resized, arrays[f"{name}/out"])


def test_position_embeddings_resize_with_aligned_corners() -> None:
    """New row i of m lies at old row i·(n-1)/(m-1); a linear ramp therefore stays one, corners included."""
    ramp = torch.arange(4.0).view(4, 1) * 10 + torch.arange(4.0)
    embedding = torch.cat([torch.tensor([[[-7.0]]]), ramp.reshape(1, 16, 1)], dim=1)
    resized = resize_position_embedding(embedding, num_prefix=1, rows=7, columns=7)
    steps = torch.arange(7.0) * 3 / 6
    torch.testing.assert_close(resized[0, 1:, 0].view(7, 7), steps[:, None] * 10 + steps)
    assert resized[0, 0, 0] == -7
    assert resize_position_embedding(embedding, num_prefix=1, rows=4, columns=4) is embedding


def test_position_embeddings_that_are_no_square_are_refused() -> None:
    with pytest.raises(UserError, match="do not form a square"):
        resize_position_embedding(torch.zeros(1, 6, 4), num_prefix=1, rows=2, columns=2)


@pytest.mark.parametrize(
    ("name", "parameters", "layers"),
    [
        # 8 blocks of width 512; 2 MoE layers of 8 experts (2,099,712 each) and a gate of 4,096; see the docstring.
        ("vmoe_small_patch32_224", 56_999_400, ["blocks.5", "blocks.7"]),
        # 95 more position embeddings of width 512, and no pre-logits (512·512 + 512) less.
        ("vmoe_small_patch32_384", 56_999_400 + 95 * 512 - 262_656, ["blocks.5", "blocks.7"]),
    ],
)
def test_released_sizes(name: str, parameters: int, layers: list[str]) -> None:
    built = timm.create_model(name)
    assert sum(parameter.numel() for parameter in built.parameters()) == parameters
    assert list(moe_layers(built)) == layers


def test_registered_models() -> None:
    assert timm.list_models("vmoe_*") == [
        "vmoe_base_patch16_224",
        "vmoe_base_patch32_224",
        "vmoe_large_patch16_224",
        "vmoe_small_patch32_224",
        "vmoe_small_patch32_384",
        "vmoe_tiny_patch8_32",
    ]
    assert list(list_architectures()) == timm.list_models("vmoe*")
    assert list_architectures()["vmoe_base_patch32_224"] == "Build V-MoE-B/32."


def test_moe_output_is_a_loop_over_tokens() -> None:
    """The whole layer, router included, from its parameters, in float64 NumPy."""
    torch.manual_seed(0)
    layer = moe_layers(small_model(eval_capacity_factor=0.75).eval())["blocks.1"]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    tokens = torch.randn(4, 17, 64)
    groups = tokens.double().numpy().reshape(1, 68, 64)
    state = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    gates = references.softmax(groups @ state["router.gate.weight"].T)
    # 68 tokens · 2 choices · 0.75 / 4 experts = 25.5, ceil 26, next multiple of four 28.
    _, combine = references.dispatch(gates, top_k=2, capacity=28)
    expected = np.zeros((68, 64))
    for token, expert in np.argwhere(combine[0].sum(-1) > 0):
        fc1 = (state["experts.fc1.weight"][expert], state["experts.fc1.bias"][expert])
        fc2 = (state["experts.fc2.weight"][expert], state["experts.fc2.bias"][expert])
        expected[token] += combine[0, token, expert].sum() * references.mlp(groups[0, token], fc1, fc2)
    assert (combine[0].sum(-1) > 0).sum() < 136, "nothing was dropped, so capacity was not tested"
    with torch.no_grad():
        assert_golden(layer(tokens).view(68, 64), expected)


def test_a_fresh_model_is_initialized_as_documented() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vmoe_small_patch32_224", num_classes=10)
    experts: Any = moe_layers(model)["blocks.5"].experts
    assert (experts.fc1.weight == experts.fc1.weight[:1]).all(), "experts start equal"
    assert model.head.weight.abs().max() == 0
    torch.testing.assert_close(model.head.bias, torch.full((10,), -math.log(10)))
    width = 512
    for weight, std in [
        (model.patch_embed.proj.weight, (3 * 32 * 32) ** -0.5),
        (model.fc_norm[0].weight, width**-0.5),
        (model.blocks[0].attn.qkv.weight, (6 / (2 * width)) ** 0.5 / 3**0.5),
        (model.blocks[0].mlp.fc1.weight, (6 / (5 * width)) ** 0.5 / 3**0.5),
        (model.pos_embed, 0.02),
        (torch.cat([model.blocks[index].mlp.router.gate.weight for index in (5, 7)]), width**-0.5),
    ]:
        assert weight.detach().std().item() == pytest.approx(std, rel=0.02)
    assert model.blocks[0].mlp.fc1.bias.detach().std().item() == pytest.approx(1e-6, rel=0.1)


def test_upcycling_keeps_what_the_dense_model_computed() -> None:
    """With every expert a copy and all of them chosen, the weights sum to one: nothing changes."""
    torch.manual_seed(0)
    dense = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=5).eval()
    images = torch.randn(2, 3, 64, 64)
    before = dense(images)
    sparse = make_sparse(dense, MoeConfig(num_experts=3, top_k=3, layers=[2, 7])).eval()
    assert list(moe_layers(sparse)) == ["blocks.2", "blocks.7"]
    torch.testing.assert_close(sparse(images), before, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_made_sparse_is_refused() -> None:
    gated = timm.create_model("vit_tiny_patch16_224", img_size=64)
    gated.blocks[11].mlp = nn.Linear(192, 192)
    with pytest.raises(UserError, match=r"blocks\.11 is a Linear"):
        make_sparse(gated, MoeConfig(layers=[11]))
    with pytest.raises(UserError, match="blocks 0 to 11"):
        make_sparse(gated, MoeConfig(layers=[12]))
    with pytest.raises(UserError, match="use a multiple of 8"):
        timm.create_model("vmoe_tiny_patch8_32", img_size=33)
    with pytest.raises(UserError, match="no downloadable weights"):
        timm.create_model("vmoe_tiny_patch8_32", pretrained=True)
    with pytest.raises(UserError, match="In the model, num_experts: input should be greater than 0; got 0"):
        timm.create_model("vmoe_tiny_patch8_32", num_experts=0)


def test_timm_takes_every_key_of_a_sparse_model() -> None:
    """Also as Python writes them: layers as a tuple, a router by name or with parameters of its own."""
    model = timm.create_model(
        "vmoe_tiny_patch8_32", num_experts=3, layers=(2,), router={"name": "softmax_token_choice"}, top_k=1
    )
    layer = moe_layers(model)["blocks.2"]
    assert list(moe_layers(model)) == ["blocks.2"]
    assert (layer.router.num_experts, layer.router.top_k) == (3, 1)
    assert list(moe_layers(timm.create_model("vmoe_tiny_patch8_32"))) == ["blocks.1", "blocks.3"]


def test_weight_decay_acts_on_kernels_alone() -> None:
    model = small_model()
    decayed = kernel_names(model)
    spared = {name for name, _ in model.named_parameters()} - decayed
    assert {"pos_embed", "cls_token", "norm.weight", "blocks.1.mlp.experts.fc1.bias", "head.bias"} <= spared
    assert {"head.weight", "patch_embed.proj.weight", "blocks.1.mlp.experts.fc1.weight"} <= decayed
    assert "blocks.1.mlp.router.gate.weight" in decayed
    assert {name for name in spared if not name.endswith("bias")} == {"pos_embed", "cls_token"} | {
        f"{norm}.weight" for norm in ("norm", *(f"blocks.{i}.norm{j}" for i in range(4) for j in (1, 2)))
    }


def test_nothing_depends_on_batch_mates_without_limit() -> None:
    model = small_model(eval_capacity_factor=None).eval()
    images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images)[:2], model(images[:2]), rtol=1e-5, atol=1e-6)


def test_groups_are_whole_images_in_batch_order() -> None:
    model = small_model().train()
    with capture(model) as decisions:
        model(torch.randn(8, 3, 32, 32))
    assert decisions["blocks.1"].gates.shape == (2, 4 * 17, 4)
    with pytest.raises(UserError, match="multiple of 4"):
        model(torch.randn(6, 3, 32, 32))


def test_capture_leaves_nothing_behind_and_can_stop_early() -> None:
    model = small_model().eval()
    ran: list[str] = []
    model.blocks[2].register_forward_hook(lambda *_: ran.append("blocks.2"))
    with torch.no_grad(), capture(model, stop_after="blocks.1") as decisions:
        model(torch.randn(4, 3, 32, 32))
    assert list(decisions) == ["blocks.1"]
    assert ran == []
    assert all(not layer.router._forward_hooks for layer in moe_layers(model).values())


def test_capacity_rule_is_replaceable_for_probing() -> None:
    model = small_model(eval_capacity_factor=0.5).eval()
    with torch.no_grad(), capture(model) as limited:
        model(torch.randn(4, 3, 32, 32))
    assert not limited["blocks.1"].processed.all()
    for layer in moe_layers(model).values():
        layer.router.eval_capacity = CapacityRule(None)
    with torch.no_grad(), capture(model) as unlimited:
        model(torch.randn(4, 3, 32, 32))
    assert unlimited["blocks.1"].processed.all()


def test_a_gap_head_reads_the_mean_of_the_normalized_patches_and_has_no_class_token() -> None:
    model = timm.create_model("vmoe_tiny_patch8_32", head="gap", pre_logits=True).eval()
    assert model.num_prefix_tokens == 0 and model.cls_token is None and model.pos_embed.shape == (1, 16, 64)
    nn.init.normal_(model.head.weight)
    seen: list[torch.Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.no_grad():
        found = model(torch.rand(2, 3, 32, 32))
        normalized = nn.functional.layer_norm(
            seen[0], (64,), weight=model.norm.weight, bias=model.norm.bias, eps=1e-6
        )
        expected = model.head(torch.tanh(model.fc_norm[0](normalized.mean(1))))
    torch.testing.assert_close(found, expected)


def test_there_is_no_other_head() -> None:
    with pytest.raises(UserError, match="no head 'map'"):
        timm.create_model("vmoe_tiny_patch8_32", head="map")
