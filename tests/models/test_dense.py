"""A model without MoE layers: trained, evaluated and counted as any, and refused by what is about routing."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from moeprobe import api
from moeprobe.adapters.inspection import facts_of_built, facts_of_header, inspect_checkpoint
from moeprobe.declarations import registry
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.models import config, grid
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.header import read_info
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.probes.engine.checks import preflight
from tests.commands import refused, run


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense checkpoint of a few steps on digits."""
    folder = tmp_path_factory.mktemp("checkpoints") / "dense"
    overrides = ["model.layers=none", "steps=12", "schedule.warmup_steps=2", "evaluate_every=6", "name=dense"]
    api.train("digits-baseline", overrides=overrides, folder=folder, device="cpu")
    return folder


@pytest.mark.parametrize("layers", [[], "none", ()])
def test_without_layers_the_model_is_the_dense_one(layers: Any) -> None:
    torch.manual_seed(0)
    settings = ModelConfig(name="vmoe_tiny_patch8_32", layers=layers, num_classes=3)
    model = build_model(settings).eval()
    assert settings.dense and not moe_layers(model)
    reference = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=4, num_heads=4, mlp_ratio=2, num_classes=3,
        act_layer=lambda: torch.nn.GELU(approximate="tanh"),
    ).eval()  # fmt: skip
    reference.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), reference(images))


def test_it_computes_what_one_expert_does() -> None:
    shared: dict[str, Any] = {"name": "vmoe_tiny_patch8_32", "num_classes": 3}
    dense = build_model(ModelConfig(layers="none", **shared)).eval()
    alone = build_model(ModelConfig(num_experts=1, top_k=1, **shared)).eval()
    theirs = alone.state_dict()
    for name, tensor in dense.state_dict().items():
        twin = theirs.get(name, theirs.get(name.replace(".mlp.", ".mlp.experts.")))
        assert twin is not None, name
        twin.copy_(tensor if twin.shape == tensor.shape else (tensor.T if tensor.ndim == 2 else tensor)[None])
    for model in (dense, alone):
        torch.nn.init.ones_(model.head.weight)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(dense(images), alone(images))


@pytest.mark.parametrize("sizes", [{}, {"width": 32, "hidden_width": 48, "num_heads": 2}], ids=str)
def test_the_header_says_what_the_model_is(sizes: dict[str, Any], tmp_path: Path) -> None:
    settings = ModelConfig.model_validate({"num_classes": 4, "layers": []} | sizes)
    about: dict[str, Any] = {"config": settings, "training": {}, "class_names": ()}
    checkpoint.save(tmp_path / "last.safetensors", build_model(settings), **about)
    facts, built = facts_of_header(*read_info(tmp_path)), facts_of_built(tmp_path)
    assert facts == built
    assert facts is not None and facts.layers == {}


def test_it_is_evaluated_and_fitted_with_few_shots(dense: Path) -> None:
    trained = json.loads((dense / "finished.json").read_text())
    result = api.evaluate(dense, data="digits", split="val", device="cpu")
    accuracy = result.table.set_index("metric")["value"]["accuracy"]
    assert accuracy == pytest.approx(trained["val_accuracy"], abs=1e-9)
    shots = api.fewshot(dense, data="digits", shots=[2], limit=40, device="cpu").table
    assert (shots[shots["metric"] == "fewshot_accuracy"]["value"] > 0.2).all()
    logits, routing = api.trace(api.load_model(dense, device="cpu"), torch.zeros(1, 3, 32, 32))
    assert logits is not None and logits.shape == (1, 10) and not routing.layers


def test_it_is_inspected(dense: Path) -> None:
    assert inspect_checkpoint(dense)["layers"] == []
    assert "No MoE layers: the model is dense." in run("inspect", dense).stdout


def test_every_probe_of_routing_refuses_it_in_one_sentence(dense: Path) -> None:
    for probe in registry.probes():
        named = {"view": "gaussian_noise"} if probe.name == "sweep" else {}
        if not probe.needs_routing:
            preflight(probe(), [dense], data="digits", options=Options())
            continue
        if probe.name in (
            "agree",
            "align",
        ):  # which are about two models, before they are about what these are
            with pytest.raises(UserError, match=r"Name at least two (models to align|forms of a model)"):
                preflight(probe(), [dense], data="digits", options=Options())
            continue
        with pytest.raises(
            UserError,
            match=rf"^dense is dense: .* no routing for {probe.name}; eval or fewshot can measure it\.$",
        ):
            preflight(probe.with_fields(named), [dense], data="digits", options=Options(**probe.defaults))
    refused("match-ratio", dense)
    refused("compare", dense, dense)


def test_settings_of_experts_are_refused(dense: Path) -> None:
    assert "leave the settings 'top_k=1' out" in refused("eval", f"{dense},top_k=1")


def test_objectives_about_routing_are_refused() -> None:
    with pytest.raises(
        UserError, match="'prc' is about routing, and a dense model has none: set objective=balanced"
    ):
        api.train("digits-prc", overrides=["model.layers=none"])


def test_a_dense_model_starts_from_a_dense_one_alone(dense: Path, tmp_path: Path) -> None:
    start = [f"initialise={dense}", "steps=1", "schedule.warmup_steps=0"]
    api.train("digits-baseline", overrides=[*start, "model.layers=[]"], folder=tmp_path / "two", device="cpu")
    with pytest.raises(UserError, match=r"does not fit the configured model: blocks\.1\.mlp\.fc1"):
        api.train("digits-baseline", overrides=start, folder=tmp_path / "three", device="cpu")


def test_the_dense_cells_of_the_sweep_are_of_equal_cost(tmp_path: Path) -> None:
    found = {}
    for cell in grid.load("dense-digits").cells:
        if cell.seed == 0:
            settings = cell.model.model_copy(update={"num_classes": 10})
            checkpoint.save(
                tmp_path / cell.name / "last.safetensors", build_model(settings), config=settings, training={},
                class_names=(),
            )  # fmt: skip
            found[cell.group] = inspect_checkpoint(tmp_path / cell.name)
    sparse = {k: found[f"softmax_token_choice-k{k}"] for k in (1, 2)}
    dense = {width: found[f"layers-none-hidden_width-{width}"] for width in (128, 192, 576)}
    # Without the routers, which are the whole difference: 2 layers of 64 x 8 numbers, for 17 tokens.
    for k, width in ((1, 128), (2, 192)):
        assert dense[width]["flops_per_image"] == sparse[k]["flops_per_image"] - 2 * 2 * 17 * 64 * 8
    # And the biases of the second layer of 14 experts.
    assert dense[576]["parameters"] == sparse[1]["parameters"] - 2 * 64 * 8 - 14 * 64


def test_the_configuration_says_none() -> None:
    assert config.load("digits-baseline", ["model.layers=none"]).model.dense
    assert config.load("digits-baseline", ["model.layers=[]"]).model.dense
    assert not config.load("digits-baseline", ["model.layers=null"]).model.dense
