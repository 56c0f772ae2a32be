"""The dense gate against loops, and against token choice of all experts."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from moeprobe import api
from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.routers.dense import Dense
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from tests.commands import Trained, refused

WIDTH, NUM_EXPERTS = 6, 4


def tokens() -> torch.Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def gelu(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_output_is_the_weighted_sum_of_all_experts(bfloat16: bool) -> None:
    torch.manual_seed(1)
    layer = MoeLayer(Dense(WIDTH, NUM_EXPERTS), MlpExperts(NUM_EXPERTS, WIDTH, 7), bfloat16_dispatch=bfloat16)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        found = layer.eval()(tokens()).numpy()
    p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    expected = np.zeros_like(found, dtype=np.float64)
    for image, token in np.ndindex(2, 5):
        x = tokens()[image, token].double().numpy()
        gates = softmax(p["router.gate.weight"] @ x)
        for expert in range(NUM_EXPERTS):
            hidden = x @ p["experts.fc1.weight"][expert] + p["experts.fc1.bias"][expert]
            hidden = np.array([gelu(value) for value in hidden])
            expected[image, token] += gates[expert] * (
                hidden @ p["experts.fc2.weight"][expert] + p["experts.fc2.bias"][expert]
            )
    if bfloat16:
        assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
        assert not np.allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_it_is_token_choice_of_all_experts() -> None:
    torch.manual_seed(1)
    experts = MlpExperts(NUM_EXPERTS, WIDTH, 7)
    dense, sparse = (
        Dense(WIDTH, NUM_EXPERTS),
        SoftmaxTokenChoice(WIDTH, NUM_EXPERTS, NUM_EXPERTS, noise_std=0.0),
    )
    sparse.load_state_dict(dense.state_dict())
    given = [tokens().requires_grad_() for _ in range(2)]
    outputs = [MoeLayer(router, experts)(x) for router, x in zip((dense, sparse), given, strict=True)]
    torch.testing.assert_close(outputs[0], outputs[1])
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad)
    torch.testing.assert_close(dense.gate.weight.grad, sparse.gate.weight.grad)


def test_a_gate_with_a_hidden_layer() -> None:
    torch.manual_seed(1)
    router = Dense(WIDTH, NUM_EXPERTS, gate_hidden=3)
    for parameter in router.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        found = router(tokens())
    p = {name: value.detach().double().numpy() for name, value in router.named_parameters()}
    for image, token in np.ndindex(2, 5):
        hidden = p["gate.0.weight"] @ tokens()[image, token].double().numpy() + p["gate.0.bias"]
        logits = p["gate.2.weight"] @ np.array([gelu(value) for value in hidden]) + p["gate.2.bias"]
        np.testing.assert_allclose(found.gates[image, token], softmax(logits), rtol=1e-4, atol=1e-6)
    # The count of the thesis: 192 x 512 + 512 and 512 x 4 + 4.
    assert sum(one.numel() for one in Dense(192, 4, gate_hidden=512).parameters()) == 100_868
    with pytest.raises(UserError, match="at least one unit"):
        Dense(WIDTH, NUM_EXPERTS, gate_hidden=0)


def test_noise_is_divided_by_the_experts() -> None:
    router, noise = Dense(WIDTH, NUM_EXPERTS, noise_std=2.0), torch.randn(2, 5, NUM_EXPERTS)
    with torch.no_grad():
        found = router(tokens(), noise)
    torch.testing.assert_close(found.noisy_logits, found.logits + noise / 2)
    torch.testing.assert_close(found.gates, found.noisy_logits.softmax(-1))
    torch.testing.assert_close(found.clean_gates, found.logits.softmax(-1))


def test_configured_with_a_hidden_layer_and_counted_in_full(tmp_path: Any) -> None:
    router = {"name": "dense", "gate_hidden": 5}
    config = ModelConfig.model_validate(
        {"num_classes": 3, "router": router, "num_experts": 4, "layers": "every-1"}
    )
    model = build_model(config)
    assert len(moe_layers(model)) == 4
    traceable = Vmoe(model, mean=(0.5,) * 3, std=(0.5,) * 3, router_name="dense", group_images=3)
    layers = traceable.trace(torch.rand(2, 3, 32, 32))[1].layers
    for layer in layers.values():
        assert layer.top_k == 0 and layer.gates_sum_to_one and layer.token_local
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones(2, 17))
    assert traceable.group_images == 1


@pytest.fixture(scope="module")
def trained_dense(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("checkpoints") / "gate"
    overrides = [
        "model.router=dense",
        "model.num_experts=4",
        "steps=4",
        "schedule.warmup_steps=1",
        "name=gate",
    ]
    api.train("digits-baseline", overrides=overrides, folder=folder, device="cpu")
    return {"gate": folder}


def test_what_is_about_choices_has_no_row(trained_dense: Trained) -> None:
    source = trained_dense["gate"]
    shared: dict[str, Any] = {"data": "digits", "limit": 24, "device": "cpu"}
    metrics = set(api.match_ratio(source, view="random_crop", **shared).table["metric"])
    assert {"weight_cosine", "weight_distance"} & metrics
    assert not {name for name in metrics if "match" in name or name.startswith(("churn", "set_jaccard"))}
    metrics = set(api.confidence(source, **shared).table["metric"])
    assert "gate_highest" in metrics and "dropped" not in metrics
    facts = inspect_checkpoint(source)
    assert facts["active_parameters"] == facts["parameters"]
    assert "so there are no choices to replay" in refused(
        "sweep", source, "--view", "gaussian_noise", "--attribute"
    )
