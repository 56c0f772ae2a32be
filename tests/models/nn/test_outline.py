"""A model that is not built is described as the one that is."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from moeprobe.adapters.inspection import facts_of_built, facts_of_header, inspect_checkpoint
from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.header import read_info
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.outline import outline
from moeprobe.models.nn.vit import VARIANTS
from moeprobe.runtime.catalog import ROUTERS

SIZES = {
    "name": "vmoe", "image_size": 24, "patch_size": 8, "width": 12, "depth": 3, "num_heads": 2, "hidden_width": 20,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: {"router": name, "layers": [0, 3]} for name in ROUTERS.built_in()},
    "all of its own": SIZES | {"layers": [2], "num_experts": 5, "pre_logits": 7, "head": "gap"},
    "pre-logits": {"pre_logits": True, "layers": "every-2", "capacity_factor": 2.0, "group_images": 3},
    "room in evaluation": {"eval_capacity_factor": 0.5, "noise_std": 0.3, "top_k": 1, "num_experts": 3},
    "slots": {"router": {"name": "soft_moe", "slots": 3}, "layers": [1]},
    "bits": {"router": {"name": "hash", "bits": 3}},
}


def saved(folder: Path, settings: dict[str, Any]) -> Path:
    config = ModelConfig.model_validate({"num_classes": 4} | settings)
    about: dict[str, Any] = {"config": config, "training": {}, "class_names": ()}
    checkpoint.save(folder / "last.safetensors", build_model(config), **about)
    return folder


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=list(CONFIGS))
def test_the_header_says_what_the_model_is(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(tmp_path / "c", settings)
    facts, built = facts_of_header(*read_info(folder)), facts_of_built(folder)
    assert facts is not None
    for name in ("image_size", "patch_size", "tokens", "width", "blocks", "classes", "parameters", "flops"):
        assert getattr(facts, name) == getattr(built, name), name
    assert list(facts.layers) == list(built.layers)
    for name, layer in built.layers.items():
        assert facts.layers[name].row(name, "") == layer.row(name, "")
        assert facts.layers[name].idle_parameters == layer.idle_parameters


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "vmoe"])
def test_the_sizes_of_all_models_are_known(name: str) -> None:
    config = ModelConfig(name=name, num_classes=3)
    with torch.device("meta"):
        model = build_model(config)
    found = outline(config, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})
    assert found is not None
    assert found.parameters == sum(one.numel() for one in model.parameters())


def test_what_the_header_does_not_say_is_built(tmp_path: Path) -> None:
    upcycled = saved(
        tmp_path / "u", {"name": "vit_tiny_patch16_224", "image_size": 32, "depth": 2, "layers": [1]}
    )
    assert facts_of_header(*read_info(upcycled)) is None
    assert inspect_checkpoint(upcycled)["model"] == "vit_tiny_patch16_224"
    folder = saved(tmp_path / "c", {})
    tensors, description = checkpoint.read_tensors(folder / "last.safetensors")
    tensors["norm.weight"] = torch.zeros(3)
    checkpoint.write_tensors(folder / "last.safetensors", tensors, description)
    with pytest.raises(UserError, match="do not fit the model it describes"):
        inspect_checkpoint(folder)


@pytest.mark.slow
@pytest.mark.promise
def test_a_header_is_inspected_without_timm_and_the_compiler(tmp_path: Path) -> None:
    folder = saved(tmp_path / "c", {})
    code = (
        "import sys; from moeprobe.adapters.inspection import inspect_checkpoint; inspect_checkpoint(sys.argv[1]); "
        "assert not {'timm', 'torchvision', 'torch._dynamo', 'pandas', 'scipy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
