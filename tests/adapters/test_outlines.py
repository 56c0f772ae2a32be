"""What a model of transformers is without its weights, compared with the model that was loaded and run."""

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from moeprobe.adapters.huggingface import HuggingfaceAdapter, digests, files
from moeprobe.adapters.huggingface.digests import digesting, remembered_digest
from moeprobe.adapters.huggingface.outline import Stored, build_outline, describe_outline
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from tests.adapters import families, tiny_texts
from tests.commands import run

# Only a pass over tokens shows these.
LEARNED = {"experts_follow_router"}
LEARNED_OF_LAYERS = {"gates", "biased_choice", "constant_weight"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_texts.olmoe(tmp_path_factory.mktemp("outline") / "tiny")


def outline_of(model: Any) -> dict[str, Any]:
    return describe_outline(build_outline(type(model), model.config), None)


@pytest.mark.parametrize(
    "family", ["olmoe", "qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "qwen3_vl_moe", "jetmoe"]
)
def test_an_outline_says_what_the_whole_model_says(family: str) -> None:
    model = families.complete(family)
    outline = outline_of(model)
    loaded = HuggingfaceAdapter(model).describe()
    for row in loaded["layers"]:
        for key in LEARNED_OF_LAYERS:
            del row[key]
    # The order in which routers run is learned, too.
    for description in (loaded, outline):
        description["layers"].sort(key=lambda row: row["layer"])
    # A model that was never saved states no precision, and has no files.
    expected = {key: value for key, value in loaded.items() if key not in LEARNED | {"dtype"}}
    assert {key: outline[key] for key in expected} == expected


def test_inspection_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = json.loads(run("inspect", f"hf:{folder}", "--check", "--json").stdout)
    monkeypatch.setattr(files, "load", None)
    shown = json.loads(run("inspect", f"hf:{folder}", "--json").stdout)
    common = set(shown) & set(checked) - {"layers"}
    assert {"sha256", "parameters", "active_parameters", "dtype", "class"} <= common
    assert {key: shown[key] for key in common} == {key: checked[key] for key in common}
    assert set(checked) - set(shown) == LEARNED
    assert set(checked["layers"][0]) - set(shown["layers"][0]) == LEARNED_OF_LAYERS
    assert shown["bytes_on_disk"] == (folder / "model.safetensors").stat().st_size


def test_settings_change_what_is_active(folder: Path) -> None:
    one, all_experts = (
        json.loads(run("inspect", f"hf:{folder},top_k={top_k}", "--json").stdout) for top_k in ("1", "all")
    )
    assert all_experts["active_parameters"] == all_experts["parameters"]
    # 7 of 8 experts of 3 · 16 · 32 parameters are idle in each of two layers.
    assert one["parameters"] - one["active_parameters"] == 2 * 7 * 3 * 16 * 32


def test_a_dense_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16
    ).save_pretrained(tmp_path)
    # There are no weights: whoever looked for them would say so.
    for command in ("inspect", "confidence"):
        result = run(command, f"hf:{tmp_path}", *(() if command == "inspect" else ("--data", "text:none")))
        assert result.exit_code == 2
    with pytest.raises(UserError, match="type 'llama' has no router that transformers records"):
        load_model(f"hf:{tmp_path}")


def test_files_that_hold_less_than_the_model_are_refused(folder: Path) -> None:
    from transformers import AutoConfig, OlmoeForCausalLM

    stored = Stored.of_folder(folder)
    assert stored is not None and stored.dtypes == ("F32",)
    config = AutoConfig.from_pretrained(folder)
    model = build_outline(OlmoeForCausalLM, config)
    assert describe_outline(model, stored)["parameters"] == stored.numbers
    config.num_hidden_layers += 1
    with pytest.raises(UserError, match="weights are missing"):
        describe_outline(build_outline(OlmoeForCausalLM, config), stored)


def test_an_outline_has_no_memory_for_weights(folder: Path) -> None:
    from transformers import AutoConfig, OlmoeForCausalLM

    model = build_outline(OlmoeForCausalLM, AutoConfig.from_pretrained(folder))
    assert {parameter.device for parameter in model.parameters()} == {torch.device("meta")}


def test_the_hash_is_of_every_file(tmp_path: Path) -> None:
    def digest() -> str:
        with digesting(str(tmp_path)) as digest_of:
            return digest_of(None)

    seen = {digest()}
    for name, content in (("config.json", "{}"), ("a.safetensors", "1"), ("b.safetensors", "1")):
        (tmp_path / name).write_text(content, encoding="utf-8")
        seen.add(digest())
    assert len(seen) == 4
    (tmp_path / "notes.md").write_text("no part of the model", encoding="utf-8")
    assert digest() in seen and remembered_digest(str(tmp_path), None) == digest()
    (tmp_path / "a.safetensors").write_text("2", encoding="utf-8")
    assert digest() not in seen


def test_a_hash_that_nobody_computed_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "LEAST_SIZE", 10)
    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    assert remembered_digest(str(tmp_path), None) is None


def test_a_load_that_fails_ends_the_hashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a")
    stopped: list[bool] = []

    def wait(path: Path, *, stop: Event) -> str:
        stopped.append(stop.wait(10))
        return ""

    monkeypatch.setattr(digests, "hash_file", wait)
    with pytest.raises(UserError, match="no weights"), digesting(str(tmp_path)):
        raise UserError("There are no weights.")
    assert stopped == [True]
