"""Settings after a checkpoint's path: what is served changes as they say, and nothing else does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from moeprobe import api
from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.models.checkpoints.checkpoint import save
from moeprobe.models.checkpoints.header import ServingSettings, split_settings
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from tests.commands import refused, run
from tests.routing.routings import digits

TRAINED = Path(__file__).parents[3] / "checkpoints/reference/digits-baseline-k2-seed0"


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    framing, data = Framing(32), digits()
    return torch.stack([framing.clean(data.example(row).image).pixels for row in range(16)])


def load(settings: str = "", **more: Any) -> Any:
    return api.load_model(f"{TRAINED}{settings}", device="cpu", **more)


def test_settings_are_read_and_written_in_one_order() -> None:
    path, settings = split_settings("runs/a, capacity=0.50 ,top_k=1,renormalise=true")
    assert path == "runs/a"
    assert settings == ServingSettings(top_k=1, capacity=0.5, renormalise=True)
    assert settings.suffix == ",top_k=1,renormalise=true,capacity=0.5"
    assert split_settings(f"x{settings.suffix}")[1] == settings
    assert split_settings("a,b/c") == ("a,b/c", ServingSettings())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("topk=1", "no setting key 'topk'. Did you mean 'top_k'"),
        ("top_k=one", "top_k: input should be a valid integer"),
        ("top_k=0", "top_k: input should be greater than 0"),
        ("top_k=9", "top_k=9 is more than the 8 experts of a layer"),
        ("top_k=1,top_k=1", "has the setting top_k twice"),
        ("capacity=-1", "capacity: input should be greater than 0"),
        ("priority=best", "priority: input should be 'order' or 'gate'"),
        ("experts=on", "experts: input should be off, without-N or only-N"),
        ("experts=only-8", "experts=only-8: the experts of a layer are 0 to 7"),
    ],
)
def test_a_setting_that_does_not_fit_is_one_sentence(settings: str, words: str) -> None:
    assert words in refused("eval", f"{TRAINED},{settings}")


def test_models_of_other_programs_take_no_settings() -> None:
    assert "leave 'top_k=1' out after 'py:module:net'" in refused("eval", "py:module:net,top_k=1")


def test_a_folder_with_such_a_name_is_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a,top_k=1"
    shutil.copytree(TRAINED, folder)
    checkpoint = api.load_model(folder, device="cpu")
    assert checkpoint.name == "a,top_k=1"
    assert "served" not in checkpoint.provenance
    assert moe_layers(checkpoint.model.model)["blocks.1"].router.top_k == 2  # type: ignore[attr-defined]


def test_fewer_experts_for_a_token_are_the_first_of_its_experts(images: torch.Tensor) -> None:
    own, one = (load(settings).model.trace(images, layers=["blocks.1"])[1] for settings in ("", ",top_k=1"))
    two, single = own.layers["blocks.1"], one.layers["blocks.1"]
    assert (two.top_k, single.top_k) == (2, 1)
    assert torch.equal(single.selected[..., 0], two.selected[..., 0])
    assert torch.equal(single.gates, two.gates)  # nothing before it has changed


def outputs(settings: str, images: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what goes into the first MoE layer and what comes out of it."""
    model = load(settings, **more).model
    kept: dict[str, torch.Tensor] = {}

    def keep(_: Any, inputs: Any, output: torch.Tensor) -> None:
        kept["in"], kept["out"] = inputs[0], output

    handle = moe_layers(model.model)["blocks.1"].register_forward_hook(keep)
    model.trace(images)
    handle.remove()
    return kept["in"], kept["out"]


def written_out(tokens: torch.Tensor, weights: Any) -> torch.Tensor:
    """Return Σ weight · expert(token), token by token; ``weights(gates)`` gives {expert whose map it is: weight}."""
    layer = moe_layers(load().model.model)["blocks.1"]
    experts: Any = layer.experts
    rows = tokens.flatten(0, 1).double()
    logits = rows @ layer.router.gate.weight.T.double()  # type: ignore[union-attr,operator]
    result = torch.zeros_like(rows)
    for number, (row, gates) in enumerate(zip(rows, logits.softmax(-1), strict=True)):
        for expert, weight in weights(gates):
            hidden = row @ experts.fc1.weight[expert].double() + experts.fc1.bias[expert].double()
            hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
            result[number] += weight * (
                hidden @ experts.fc2.weight[expert].double() + experts.fc2.bias[expert].double()
            )
    return result.view_as(tokens)


def chosen(gates: torch.Tensor, k: int = 2) -> list[tuple[int, float]]:
    return [(int(expert), float(gates[expert])) for expert in gates.topk(k).indices]


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ("", chosen),
        (",top_k=1", lambda gates: chosen(gates, 1)),
        (",top_k=1,renormalise=true", lambda gates: [(expert, 1.0) for expert, _ in chosen(gates, 1)]),
        (",top_k=3", lambda gates: chosen(gates, 3)),
        (",experts=off", lambda gates: []),
        (",experts=without-3", lambda gates: [pair for pair in chosen(gates) if pair[0] != 3]),
        (",experts=only-3", lambda gates: [(3, sum(weight for _, weight in chosen(gates)))]),
    ],
)
def test_a_layer_computes_what_is_written(settings: str, weights: Any, images: torch.Tensor) -> None:
    tokens, output = outputs(settings, images[:4])
    torch.testing.assert_close(output.double(), written_out(tokens, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("priority", ["order", "gate"])
def test_little_room_goes_to_the_first_or_to_the_surest(priority: str, images: torch.Tensor) -> None:
    """C = ⌈S · k · F / E⌉ in groups of eight images; the first choices of all tokens come before any second."""
    model = load(f",capacity=0.5,priority={priority}", group_images=8).model
    layer = model.trace(images, layers=["blocks.1"])[1].layers["blocks.1"]
    places = -(-8 * 17 * 2 * 0.5 // 8)
    dropped = 0
    for group in range(2):
        part = slice(8 * group, 8 * group + 8)
        selected, processed = (side[part].flatten(0, 1) for side in (layer.selected, layer.processed))
        best = layer.gates[part].flatten(0, 1).max(-1).values
        order = best.argsort(descending=True, stable=True) if priority == "gate" else torch.arange(len(best))
        room = dict.fromkeys(range(8), places)
        for choice in range(2):
            for token in order.tolist():
                expert = int(selected[token, choice])
                assert bool(processed[token, choice]) == (room[expert] > 0)
                dropped += room[expert] <= 0
                room[expert] -= 1
    assert dropped > 20


def test_the_capacity_of_evaluation_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    config = ModelConfig(num_classes=10, eval_capacity_factor=0.7)
    folder = tmp_path / "tight"
    folder.mkdir()
    save(
        folder / "last.safetensors", build_model(config), config=config, training={}, class_names=("a",) * 10
    )
    loaded = [api.load_model(f"{folder}{settings}") for settings in ("", ",capacity=trained", ",capacity=2")]
    assert [one.provenance["capacity"] for one in loaded] == ["unlimited", "0.7", "2"]


def test_one_run_holds_a_checkpoint_against_itself(tmp_path: Path) -> None:
    sources = (str(TRAINED), f"{TRAINED},top_k=1", f"{TRAINED},experts=off")
    run("eval", *sources, "--limit", 60, "--out", tmp_path / "run")
    names = [f"{TRAINED.name}{settings}" for settings in ("", ",top_k=1", ",experts=off")]
    table = pd.read_csv(tmp_path / "run/table.csv")
    assert list(dict.fromkeys(table.checkpoint)) == names
    paired = pd.read_csv(tmp_path / "run/comparison.csv")
    assert set(paired.reference) == {names[0]}
    assert list(dict.fromkeys(paired.checkpoint)) == names[1:]
    request = json.loads((tmp_path / "run/run.json").read_text())["checkpoints"]
    assert [request[name].get("served") for name in names] == [None, {"top_k": 1}, {"experts": "off"}]
    assert len({request[name]["sha256"] for name in names}) == 1
    same = refused("eval", f"{TRAINED},top_k=1,experts=off", f"{TRAINED},experts=off,top_k=1")
    assert "The same checkpoint was named twice" in same


@pytest.mark.parametrize("settings", ["top_k=1", "renormalise=true", "priority=gate"])
def test_a_router_that_knows_no_such_thing_says_so(settings: str, tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"num_classes": 10, "router": "soft_moe", "group_images": 1})
    folder = tmp_path / "soft"
    folder.mkdir()
    save(
        folder / "last.safetensors", build_model(config), config=config, training={}, class_names=("a",) * 10
    )
    with pytest.raises(UserError, match="soft_moe"):
        api.load_model(f"{folder},{settings}")


def test_half_the_choices_are_half_the_operations_of_the_experts() -> None:
    two, one = (
        [layer["expert_flops_per_image"] for layer in inspect_checkpoint(f"{TRAINED}{settings}")["layers"]]
        for settings in ("", ",top_k=1")
    )
    # 17 tokens, two experts each, two products of 64 × 128 with a multiply-add counted as two.
    assert two == [17 * 2 * 2 * 2 * 64 * 128] * 2
    assert one == [value // 2 for value in two]


def test_the_guide_says_what_can_be_set() -> None:
    guide = (TRAINED.parents[2] / "docs/guide/checkpoints.md").read_text()
    for name in ServingSettings.model_fields:
        assert f"| `{name}" in guide
