"""A model that is spread over devices, or partly on the disk, gives the numbers of one in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from moeprobe import api
from moeprobe.adapters import residence
from moeprobe.adapters.hooks.module import move
from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.errors import UserError
from moeprobe.runtime.placement import WeightPlacement
from tests.adapters import tiny_texts

# All of the model but its last layer, which is read from the disk for each pass.
SPLIT = {"": "cpu", "model.layers.1": "disk"}
SWEEP: dict[str, Any] = {"view": "embedding_noise", "severities": (0.0, 0.5), "figures": False}


def qwen3_moe(folder: Path) -> Path:
    """Write a Qwen3-MoE of two layers."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tiny_texts.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two families and of texts."""
    folder = tmp_path_factory.mktemp("placement")
    (folder / "lines.txt").write_text("\n".join(tiny_texts.texts(6)), encoding="utf-8")
    (folder / "split.json").write_text(json.dumps(SPLIT), encoding="utf-8")
    tiny_texts.olmoe(folder / "olmoe")
    qwen3_moe(folder / "qwen3")
    return folder


def adapter_of(checkpoint: api.Checkpoint) -> HuggingfaceAdapter:
    assert isinstance(checkpoint.model, HuggingfaceAdapter)
    return checkpoint.model


def offloaded_parts(checkpoint: api.Checkpoint) -> set[str]:
    """The blocks, or whatever is no block, of which parameters are on the disk."""
    names = [name for name, value in adapter_of(checkpoint).model.named_parameters() if value.is_meta]
    return {".".join(name.split(".")[:3]) for name in names}


def split_of(shared: Path, tmp_path: Path) -> dict[str, Any]:
    """Keywords of the map by which the last layer is on the disk."""
    return {"device_map": str(shared / "split.json"), "offload": tmp_path / "offload"}


def assert_same_files(*folders: Path) -> None:
    for file in ("table.csv", "images.parquet"):
        expected, *others = ((folder / file).read_bytes() for folder in folders)
        assert all(other == expected for other in others), file


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("family", ["olmoe", "qwen3"])
def test_on_the_disk_as_in_memory(shared: Path, tmp_path: Path, family: str) -> None:
    folder = {"offload": tmp_path / "offload"}
    placements: dict[str, dict[str, Any]] = {
        "memory": {},
        "file": split_of(shared, tmp_path),
        "limit": {"max_memory": "cpu:195KB"} | folder,
        "disk": {"device_map": "balanced", "max_memory": "cpu:1KB"} | folder,
    }
    # The table names the folder of the run, so each has the same name elsewhere.
    outs = [tmp_path / name / "run" for name in placements]
    for out, keywords in zip(outs, placements.values(), strict=True):
        data = f"text:{shared / 'lines.txt'}"
        api.sweep(f"hf:{shared / family}", data=data, out=out, **(SWEEP | keywords))
    assert_same_files(*outs)
    # What was written for the passes goes with the models.
    assert list((tmp_path / "offload").iterdir()) == []


@pytest.mark.slow
@pytest.mark.promise
def test_flips_on_the_disk_as_in_memory(shared: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name / "run" for name in ("memory", "disk")]
    for out, keywords in zip(outs, ({}, split_of(shared, tmp_path)), strict=True):
        api.flips(
            f"hf:{shared / 'olmoe'}",
            data=f"text:{shared / 'lines.txt'}",
            view="embedding_noise",
            limit=2,
            patches=1,
            figures=False,
            out=out,
            **keywords,
        )
    assert_same_files(*outs)


def test_limits_split_a_model_between_memory_and_disk(shared: Path, tmp_path: Path) -> None:
    source = f"hf:{shared / 'olmoe'}"
    by_file = api.load_model(source, **split_of(shared, tmp_path))
    by_limit = api.load_model(source, max_memory="cpu:195KB", offload=tmp_path / "offload")
    whole = api.load_model(source, device_map="auto")
    assert offloaded_parts(by_file) == {"model.layers.1"}
    assert "model.layers.1" in offloaded_parts(by_limit)
    assert "model.layers.0" not in offloaded_parts(by_limit)
    assert offloaded_parts(whole) == set()
    # The sidecar says where the modules were.
    assert by_file.provenance["devices"]["model.layers.1"] == "disk"


def test_a_router_with_a_bias_on_the_disk_is_read(tmp_path: Path) -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        max_position_embeddings=64,
    )
    model = DeepseekV3ForCausalLM(config)
    with torch.no_grad():
        model.model.layers[1].mlp.gate.e_score_correction_bias.normal_(0, 0.3)
    model.save_pretrained(tmp_path / "deepseek")
    tiny_texts.tokenizer().save_pretrained(tmp_path / "deepseek")
    source = f"hf:{tmp_path / 'deepseek'}"
    in_memory = api.load_model(source)
    on_disk = api.load_model(source, max_memory="cpu:1KB", offload=tmp_path / "offload")
    models = [adapter_of(in_memory), adapter_of(on_disk)]
    # Not all releases of accelerate send a whole model to the disk: something without parameters stays.
    assert set(on_disk.provenance["devices"].values()) == {"cpu", "disk"}
    assert all(parameter.is_meta for parameter in models[1].model.parameters())
    assert all(model.describe()["layers"][0]["biased_choice"] for model in models)
    texts: Any = in_memory.framing.blank()
    first, second = (model.trace(texts)[1].layers["layers.1"] for model in models)
    assert torch.equal(first.gates, second.gates) and torch.equal(first.selected, second.selected)
    # Experts that cannot be changed are not said to follow their router.
    assert [model.expert_checks[0].experts for model in models] == [8, 0]


def test_precision_does_not_round_what_is_on_the_disk(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="in memory only while their layer runs"):
        api.precision(
            f"hf:{shared / 'olmoe'}",
            data=f"text:{shared / 'lines.txt'}",
            figures=False,
            **split_of(shared, tmp_path),
        )


@pytest.mark.slow
def test_models_on_the_disk_take_turns_in_memory(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residence, "SMALL", 0)
    sources = [f"hf:{shared / family}" for family in ("olmoe", "qwen3")]
    outs = [tmp_path / name / "run" for name in ("memory", "disk")]
    for out, keywords in zip(outs, ({}, split_of(shared, tmp_path)), strict=True):
        data = f"text:{shared / 'lines.txt'}"
        api.sweep(sources, data=data, out=out, **(SWEEP | keywords))
    assert_same_files(*outs)


MAPS = {
    "a module that is not there": ({"": "cpu", "model.layers.7": "disk"}, "no module 'model.layers.7'"),
    "a parameter without a device": ({"model.embed_tokens": "cpu"}, 'gives .* no device; the key ""'),
    "no device": ({"": "gpu"}, "is no map of devices"),
    "no object": (["cpu"], "is no map of devices"),
    "a device that is not here": ({"": 900}, "There is no device 900 here"),
    "the disk without a folder": ({"": "disk"}, "name a folder for the rest"),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_that_do_not_fit_are_refused(shared: Path, tmp_path: Path, name: str) -> None:
    content, sentence = MAPS[name]
    path = tmp_path / "map.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        api.load_model(f"hf:{shared / 'olmoe'}", device_map=path)


def test_options_that_have_no_effect_are_refused(shared: Path) -> None:
    source = f"hf:{shared / 'olmoe'}"
    with pytest.raises(UserError, match="device_map is for models of hf:"):
        api.load_model("checkpoints/demo-prc", device_map="auto")
    with pytest.raises(UserError, match="max_memory is for models of hf:"):
        api.load_model("py:package:factory", max_memory="cpu:1GB")
    with pytest.raises(UserError, match='leave device="cpu" out'):
        api.load_model(source, device_map="auto", device="cpu")
    with pytest.raises(UserError, match="leave one of them out"):
        api.load_model(source, device_map=shared / "split.json", max_memory="cpu:1GB")
    with pytest.raises(UserError, match="is loaded already"):
        api.confidence(api.load_model(source), data=f"text:{shared / 'lines.txt'}", device_map="auto")


def test_sizes_are_read_as_they_are_written() -> None:
    limits = WeightPlacement(max_memory="0:70GiB, cpu:1.5GB,mps:1000").limits
    assert limits == {0: 70 * 2**30, "cpu": 1_500_000_000, "mps": 1000}
    for wrong in ("70GiB", "0:", "gpu:1GB", "cpu:1XB", "cpu:1GB;0:1GB", "", "cpu:-1GB"):
        with pytest.raises(UserError, match="takes DEVICE:SIZE"):
            WeightPlacement(max_memory=wrong)
    with pytest.raises(UserError, match="names the device 0 twice"):
        WeightPlacement(max_memory="0:1GB,0:2GB")


def test_a_module_that_is_spread_already_is_not_moved() -> None:
    net = gate_and_experts()
    net.hf_device_map = {"": "cpu"}
    assert move(net, "meta") is net and not next(net.parameters()).is_meta
    assert next(move(gate_and_experts(), "meta").parameters()).is_meta


def test_a_module_of_which_weights_are_elsewhere_is_refused() -> None:
    net = gate_and_experts()
    net["experts"][0].to("meta")
    with pytest.raises(UserError, match="load the module without offloading"):
        api.Hooks(net, image_size=2, mean=[0, 0, 0], std=[1, 1, 1])


def gate_and_experts() -> Any:
    """A gate and two experts."""
    return torch.nn.ModuleDict(
        {"gate": torch.nn.Linear(3, 2), "experts": torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in "ab")}
    )
