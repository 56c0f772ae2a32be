"""From a model configuration to a model."""

import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers


def build(**settings: object) -> torch.nn.Module:
    return build_model(ModelConfig.model_validate({"num_classes": 3} | settings))


def test_every_value_reaches_the_model() -> None:
    model = build(
        image_size=64, patch_size=16, pre_logits=True, head="gap", num_experts=5, top_k=3, layers=[0, 2], noise_std=0.5,
        capacity_factor=1.5, eval_capacity_factor="none", batch_priority=True, group_images=2, expert_dropout=0.3,
        bfloat16_dispatch=True,
    )  # fmt: skip
    assert list(moe_layers(model)) == ["blocks.0", "blocks.2"]
    layer = moe_layers(model)["blocks.2"]
    router = layer.router
    assert (router.num_experts, router.top_k, router.noise_std, router.batch_priority) == (5, 3, 0.5, True)
    assert (router.capacity.factor, router.eval_capacity.factor) == (1.5, None)
    assert (layer.group_images, layer.bfloat16_dispatch, layer.experts.dropout) == (2, True, 0.3)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3)
    assert model.num_prefix_tokens == 0
    assert {"fc_norm.0.weight", "pos_embed"} <= {name for name, _ in model.named_parameters()}


def test_any_vit_of_timm_is_made_sparse() -> None:
    model = build(name="vit_tiny_patch16_224", image_size=64, num_experts=3, layers=[1]).eval()
    assert list(moe_layers(model)) == ["blocks.1"]
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "vmoe_smal_patch32_224"}, "Did you mean 'vmoe_small_patch32_224'"),
        ({"num_classes": None}, r"needs model\.num_classes"),
        ({"image_size": 33}, "use a multiple of 8"),
        ({"name": "vit_tiny_patch16_224", "image_size": 40}, "use a multiple of 16"),
        ({"name": "vit_tiny_patch16_224", "pre_logits": True}, r"model\.pre_logits is for V-MoE's own"),
        ({"name": "vit_tiny_patch16_224", "head": "gap"}, r"model\.head is for V-MoE's own"),
        ({"name": "resnet18"}, "ResNet; only vision transformers"),
        ({"name": "resnet18", "image_size": 64}, "timm cannot build 'resnet18'"),
        ({"top_k": 9}, "between 1 and the 8 experts; got 9"),
        ({"layers": [4]}, "blocks 0 to 3"),
        ({"router": "softmax_token"}, "Did you mean 'softmax_token_choice'"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        build(**settings)
    assert "\n" not in str(caught.value)
