"""``moeprobe upcycle``: a dense transformer becomes a sparse checkpoint, exactly at the start."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from moeprobe import api
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from tests.commands import refused, run

# The smallest transformer that timm has: six blocks of width 64, and a head of 1,000 classes.
NAME, SIZE = "test_vit", 32


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(NAME, img_size=SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def source(dense: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "dense.safetensors"
    save_file(dense.state_dict(), path)
    return f"timm:{NAME}@{path}"


def upcycled(source: str, folder: Path, **settings: Any) -> api.Upcycled:
    everything: dict[str, Any] = {"blocks": [1, 4], "num_experts": 3, "image_size": SIZE, **settings}
    return api.upcycle(source, folder, **everything)


def test_what_is_written_computes_what_timm_does(dense: nn.Module, source: str, tmp_path: Path) -> None:
    """The reference is timm's own model: logits too, since the head is taken over."""
    made = upcycled(source, tmp_path / "c")
    model, info = checkpoint.load(tmp_path / "c")
    assert list(moe_layers(model)) == ["blocks.1", "blocks.4"] == list(made.layers)
    assert info.model.mean == [0.5] * 3, "timm's"
    images = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = dense(images * 2 - 1)
        logits = model.eval()(images * 2 - 1)
        traced, routing = api.trace(api.load_model(tmp_path / "c"), images)
    for found in (logits, traced):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert routing.layers["blocks.4"].selected.shape == (2, 5, 2)
    assert made.difference <= 1e-5 and not made.has_fresh_head
    # Two blocks have three perceptrons in place of one, and a router.
    perceptron = sum(
        tensor.numel() for name, tensor in dense.state_dict().items() if name.startswith("blocks.1.mlp.")
    )
    assert made.parameters - made.dense_parameters == 2 * (2 * perceptron + 3 * 64)


@pytest.mark.parametrize("settings", [{"noise": 0.1}, {"renormalise": False}], ids=str)
def test_the_difference_is_measured(source: str, tmp_path: Path, settings: dict[str, Any]) -> None:
    made = upcycled(source, tmp_path / "c", **settings)
    assert made.difference > 1e-3
    weights = checkpoint.load(tmp_path / "c")[0].state_dict()["blocks.1.mlp.experts.fc1.weight"]
    assert torch.equal(weights[0], weights[1]) is ("noise" not in settings)
    training = checkpoint.read_info(tmp_path / "c")[0].training
    assert training["upcycled"]["noise"] == settings.get("noise", 0)


def test_a_dense_checkpoint_keeps_its_head_and_is_probed_and_trained(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"layers": [], "num_classes": 10})
    torch.manual_seed(0)
    model = build_model(config).eval()
    names = api.open_data("digits").class_names
    assert names is not None
    training = {"data": "digits", "split": "by hand", "seed": 3, "group": "dense"}
    checkpoint.save(
        tmp_path / "dense" / "last.safetensors", model, config=config, training=training, class_names=names
    )
    folder = tmp_path / "sparse"
    command = ("upcycle", tmp_path / "dense", "--blocks", "1,3", "--data", "digits", "--out", folder)
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "on 8 images of digits:" in result.stdout and "fresh" not in result.stdout
    sparse, info = checkpoint.load(folder)
    assert info.class_names == names and list(moe_layers(sparse)) == ["blocks.1", "blocks.3"]
    assert torch.equal(sparse.state_dict()["head.weight"], model.head.weight)
    with pytest.warns(UserWarning, match="is finished"):
        api.upcycle(str(tmp_path / "dense"), folder, blocks=[1, 3], data="digits")
    assert "add --overwrite" in refused(*command, "--seed", 1)
    assert info.training["data"] == "digits" and info.training["split"] == "by hand"
    assert not info.training.keys() & {"seed", "group"}, (
        "the sparse model is no member of the dense ones' group"
    )
    evaluated = json.loads(run("match-ratio", folder, "--split", "train", "--limit", 4, "--json").stdout)
    assert {row["layer"] for row in evaluated["table"]} >= {"blocks.1", "blocks.3"}
    assert "images that it was trained on" in evaluated["sidecar"]["checkpoints"]["sparse"]["warning"]
    overrides = [
        f"initialise={folder}",
        "model.router={name: softmax_token_choice, renormalise: true}",
        "steps=1",
        "schedule.warmup_steps=0",
    ]
    api.train(
        "digits-prc", overrides=[*overrides, "evaluate_every=1", "batch_size=2"], folder=tmp_path / "run"
    )
    trained = checkpoint.read_info(tmp_path / "run")[0].training
    assert trained["started_from"]["path"] == str(folder / "last.safetensors")
    assert "has experts already" in refused("upcycle", folder, "--out", tmp_path / "again")
    onto_itself = refused("upcycle", tmp_path / "dense", "--out", tmp_path / "dense", "--overwrite")
    assert "would be replaced" in onto_itself


def test_mistakes_are_sentences(source: str, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "never")
    small = ("--image-size", SIZE)
    for words, said in (
        ((source, *small, "--blocks", "1,6"), "among the blocks 0 to 5; got [1, 6]"),
        ((source, *small, "--blocks", "some"), "last-N or every-N"),
        ((source, *small, "--blocks", "none"), "name the blocks to make sparse"),
        ((source, *small, "--num-experts", 1), "top_k must be between 1 and the 1 experts; got 2"),
        ((source, *small, "--noise", -1), "--noise: a number of at least 0"),
        ((source, *small, "--data", "digits"), "about 1,000 classes, and digits has 10"),
        ((f"timm:{NAME}@nowhere.pth",), "There is no file nowhere.pth"),
        ((f"timm:{NAME}s",), "Did you mean"),
        (("timm:resnet18",), "only vision transformers"),
        (("timm:vmoe_tiny_patch8_32",), "sparse already"),
        ((tmp_path / "nowhere",), "There is no checkpoint"),
    ):
        assert said in refused("upcycle", *words, *out), words
    assert "name its folder with --out" in refused("upcycle", source)
    assert not (tmp_path / "never").exists()


def test_without_a_head_the_data_name_the_classes(dense: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "headless.safetensors"
    save_file({name: value for name, value in dense.state_dict().items() if "head" not in name}, path)
    with pytest.raises(api.UserError, match="has no head for classes: name the data set"):
        upcycled(f"timm:{NAME}@{path}", tmp_path / "c")
    made = upcycled(f"timm:{NAME}@{path}", tmp_path / "c", data="digits")
    assert made.has_fresh_head and made.model.num_classes == 10 and made.difference <= 1e-5
