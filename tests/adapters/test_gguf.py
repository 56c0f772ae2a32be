"""Models of GGUF files: what is read agrees with a dequantization of one's own, and what cannot be read is refused."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from moeprobe import api
from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.adapters.huggingface.digests import reload
from moeprobe.adapters.huggingface.files import load
from moeprobe.adapters.huggingface.gguf_files import GgufFile
from moeprobe.adapters.huggingface.settings import Settings
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TextFraming, TokenBatch, Tokenizer
from moeprobe.routing.capabilities import Weighed
from moeprobe.runtime.extras import is_older
from tests.adapters import families, k_quants, tiny_gguf, tiny_texts
from tests.commands import run

# llama.cpp's names, and those of transformers.
TYPES = {
    "olmoe": "olmoe",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "llama": "mixtral",
    "gpt-oss": "gpt_oss",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Models as ``save_pretrained`` writes them, by llama.cpp's name of their architecture."""
    made: dict[str, Path] = {}

    def get(architecture: str) -> Path:
        if architecture not in made:
            folder = tmp_path_factory.mktemp("saved") / architecture
            # Rows of Q8_0 and Q4_0 are blocks of 32.
            widths = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
            # As llama.cpp always has it.
            constants = {"norm_topk_prob": True} if architecture == "qwen3moe" else {}
            model = families.small(TYPES[architecture], **dict.fromkeys(widths, 32), **constants)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    # Wide, so that tokens choose differently; vectors that are zero or one could be confused.
                    value.normal_(1.0 if "norm" in name else 0.0, 1.0 if ".gate." in name else 0.15)
            model.save_pretrained(folder)
            made[architecture] = folder
        return made[architecture]

    return get


def routing(reference: str, **more: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the next token's scores, and each layer's routing, of fixed tokens."""
    model = load_model(reference, **more).model
    ids = torch.arange(3, 27).reshape(2, 12)
    mask = torch.ones_like(ids, dtype=torch.bool)
    scores, trace = model.trace(TokenBatch(ids, mask, mask, 0))
    assert scores is not None
    return scores, dict(trace.layers)


def tokenizer_of(path: Path) -> Tokenizer:
    framing = load_model(f"hf:{path}").framing
    assert isinstance(framing, TextFraming)
    return framing.tokenizer


def assert_same(
    first: tuple[torch.Tensor, dict[str, Any]], second: tuple[torch.Tensor, dict[str, Any]]
) -> None:
    assert first[1].keys() == second[1].keys()
    for name, layer in first[1].items():
        other = second[1][name]
        assert (layer.gates - other.gates).abs().max() <= 1e-5
        assert torch.equal(layer.selected, other.selected)
    assert (first[0] - second[0]).abs().max() <= 1e-5 * second[0].abs().max()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", ["olmoe", "qwen3moe"])
def test_routing_is_that_of_a_loop_over_blocks(
    architecture: str, kind: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = saved(architecture)
    tiny_gguf.write(tmp_path / "model.gguf", folder, architecture, kind)
    shutil.copy(folder / "config.json", tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    shutil.copy(folder / "config.json", plain)
    weights = {
        name: value
        if value.ndim < 2 or name.endswith("mlp.gate.weight")
        else tiny_gguf.dequantized(value, kind)
        for name, value in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, plain / "model.safetensors", metadata={"format": "pt"})
    read = routing(f"hf:{tmp_path},gguf=model.gguf")
    assert_same(read, routing(f"hf:{plain}"))
    # What was rounded off is far more than what is allowed above.
    assert (read[0] - routing(f"hf:{folder}")[0]).abs().max() > 1e-3 * read[0].abs().max()


def test_k_quants_are_what_loops_over_their_bits_say(tmp_path: Path) -> None:
    """A file mixes them, as llama.cpp's Q4_K_M does: five matrices of one layer, each in another kind."""
    folder = tiny_texts.olmoe(
        tmp_path / "olmoe", hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_experts=2
    )
    kinds = {
        "attn_k": "Q2_K",
        "attn_q": "Q3_K",
        "ffn_gate_exps": "Q4_K",
        "ffn_up_exps": "Q5_K",
        "ffn_down_exps": "Q6_K",
    }
    tensors = tiny_gguf.tensors_of(folder, "olmoe")
    names = {part: next(name for name in tensors if f".{part}.weight" in name) for part in kinds}
    raw = {
        name: k_quants.made_up(tensors[name].shape, kinds[part], seed=seed)
        for seed, (part, name) in enumerate(names.items())
    }
    tiny_gguf.write(folder / "small.gguf", folder, "olmoe", kinds, raw=raw)
    opened = load_model(f"hf:{folder},gguf=small.gguf")
    assert isinstance(opened.model, HuggingfaceAdapter)
    state = opened.model.model.state_dict()
    experts = "model.layers.0.mlp.experts"
    gate, up = state[f"{experts}.gate_up_proj"].split(256, dim=1)
    parameters = {
        "attn_k": state["model.layers.0.self_attn.k_proj.weight"],
        "attn_q": state["model.layers.0.self_attn.q_proj.weight"],
        "ffn_gate_exps": gate,
        "ffn_up_exps": up,
        "ffn_down_exps": state[f"{experts}.down_proj"],
    }
    for part, name in names.items():
        # Every fifth row, since a loop over all bits takes seconds.
        expected = k_quants.dequantized(raw[name][..., ::5, :], kinds[part])
        np.testing.assert_allclose(parameters[part][..., ::5, :].numpy(), expected, rtol=1e-6, atol=1e-7)
        assert len(np.unique(expected)) > 1000
    assert opened.provenance["form"]["number_formats"]["experts"] == "Q4_K, Q5_K, Q6_K"


KNOWN = pytest.mark.skipif(is_older("gguf", "0.18"), reason="names of tensors of gpt-oss need gguf 0.18")


@pytest.mark.parametrize(
    "architecture", [pytest.param(name, marks=[KNOWN] if name == "gpt-oss" else []) for name in TYPES]
)
def test_what_the_converter_changes_is_undone(
    architecture: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = saved(architecture)
    path = tiny_gguf.write(tmp_path / "whole.gguf", folder, architecture)
    shutil.copy(folder / "config.json", tmp_path)
    assert_same(routing(f"hf:{path}"), routing(f"hf:{folder}"))


def test_a_package_without_names_for_a_family_is_refused(
    saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gguf

    path = tiny_gguf.write(tmp_path / "oss.gguf", saved("olmoe"), "gpt-oss", tensors={})
    shutil.copy(saved("olmoe") / "config.json", tmp_path)
    known = {key: name for key, name in gguf.MODEL_ARCH_NAMES.items() if name != "gpt-oss"}
    monkeypatch.setattr(gguf, "MODEL_ARCH_NAMES", known)
    with pytest.raises(
        UserError, match=r"file of gpt-oss needs gguf 0\.18 or later, and this is .*: pip install"
    ):
        load_model(f"hf:{path}")


def test_files_of_16_bits_are_exact(saved: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "half.gguf", saved("olmoe"), "olmoe", "BF16")
    model = load_model(f"hf:{path}")
    assert model.provenance["dtype"] == "float32" and model.provenance["form"]["dequantized"] is False
    assert isinstance(model.model, HuggingfaceAdapter)
    state = load_file(saved("olmoe") / "model.safetensors")
    name = "model.layers.0.mlp.gate.weight"
    # Routers are float32 in such files.
    assert np.array_equal(model.model.model.state_dict()[name].numpy(), state[name])


@pytest.mark.parametrize("architecture", ["olmoe", "qwen2moe", "qwen3moe", "llama"])
def test_metadata_take_the_place_of_a_configuration(
    architecture: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tiny_gguf.write(tmp_path / "alone.gguf", saved(architecture), architecture)
    assert_same(routing(f"hf:{path}"), routing(f"hf:{saved(architecture)}"))


def test_every_part_and_the_form_are_told(tmp_path: Path) -> None:
    folder = tiny_texts.olmoe(tmp_path / "olmoe", intermediate_size=32)
    kinds = {"exps": "Q4_0", "attn": "Q8_0", "token_embd": "Q8_0", "output.weight": "F16"}
    tiny_gguf.write(folder / "small.gguf", folder, "olmoe", kinds)
    reference = f"hf:{folder},gguf=small.gguf"
    # ``attn_output`` is attention, and ``output`` the head.
    parts = {"routers": "F32", "experts": "Q4_0", "attention": "Q8_0", "embeddings": "Q8_0", "head": "F16"}
    shown = json.loads(run("inspect", reference, "--json").stdout)
    assert shown["quantization"] == "gguf" and shown["dequantized"] is True
    assert shown["number_formats"] == parts
    assert shown["bytes_on_disk"] == (folder / "small.gguf").stat().st_size
    checked = json.loads(run("inspect", reference, "--check", "--json").stdout)
    assert checked["number_formats"] == parts
    data = tmp_path / "lines.txt"
    data.write_text("\n".join(tiny_texts.texts(4)), encoding="utf-8")
    api.confidence(reference, data=f"text:{data}", out=tmp_path / "run")
    (facts,) = json.loads((tmp_path / "run" / "table.json").read_text(encoding="utf-8"))[
        "checkpoints"
    ].values()
    assert facts["form"] == {"quantization": "gguf", "number_formats": parts, "dequantized": True}
    assert facts["path"] == str(folder / "small.gguf") and facts["dtype"] == "float32"


def test_the_hash_is_of_the_file_that_is_read(tmp_path: Path) -> None:
    folder = tiny_texts.olmoe(tmp_path / "olmoe", intermediate_size=32)
    first = tiny_gguf.write(folder / "first.gguf", folder, "olmoe", "Q8_0")
    second = tiny_gguf.write(folder / "second.gguf", folder, "olmoe", "Q4_0")

    def hash_of(path: Path) -> str:
        sha256: str = json.loads(run("inspect", f"hf:{path}", "--json").stdout)["sha256"]
        return sha256

    before = hash_of(first)
    assert hash_of(second) != before
    (folder / "model.safetensors").unlink()
    (folder / "notes.txt").write_text("of something else", encoding="utf-8")
    assert hash_of(first) == before
    assert load_model(f"hf:{first}").provenance["sha256"] == before
    (folder / "config.json").write_text(
        (folder / "config.json").read_text(encoding="utf-8") + " ", encoding="utf-8"
    )
    assert hash_of(first) != before


def test_the_tokenizer_is_of_the_file_or_of_its_folder(tmp_path: Path) -> None:
    folder = tiny_texts.olmoe(tmp_path / "olmoe", vocab_size=len(tiny_texts.tokenizer()))
    (tmp_path / "alone").mkdir()
    alone = tiny_gguf.write(tmp_path / "alone" / "model.gguf", folder, "olmoe", tokens=True)
    beside = tiny_gguf.write(folder / "model.gguf", folder, "olmoe")
    text = "seven large ships sail"
    own, of_folder = tokenizer_of(alone)(text, max_length=64), tokenizer_of(beside)(text, max_length=64)
    # The folder's puts <s> in front.
    assert own[0].tolist() == of_folder[0].tolist()[1:]
    pieces = [[text[start:end].strip() for start, end in spans] for spans in (own[1], of_folder[1][1:])]
    assert pieces[0] == pieces[1] and "large" in pieces[0]
    (tmp_path / "alone" / "model.gguf").unlink()
    without = tiny_gguf.write(tmp_path / "alone" / "model.gguf", folder, "olmoe")
    with pytest.raises(UserError, match="has no tokenizer"):
        tokenizer_of(without)(text, max_length=64)


def test_it_is_read_again_as_long_as_it_is_the_same(tmp_path: Path) -> None:
    folder = tiny_texts.olmoe(tmp_path / "olmoe", intermediate_size=32)
    path = tiny_gguf.write(folder / "small.gguf", folder, "olmoe", "Q8_0")
    model = load_model(f"hf:{path}")
    sha256 = model.provenance["sha256"]
    read = partial(load, str(folder), settings=Settings(gguf="small.gguf"))
    again = partial(reload, str(folder), read, move=lambda model: model, sha256=sha256, gguf="small.gguf")
    assert isinstance(model.model, HuggingfaceAdapter)
    for first, second in zip(model.model.model.parameters(), again().parameters(), strict=True):
        assert torch.equal(first, second)
    tiny_gguf.write(path, folder, "olmoe", "Q4_0")
    with pytest.raises(UserError, match="has changed since the run began"):
        again()


def test_a_vocabulary_is_passed_over(saved: Callable[[str], Path], tmp_path: Path) -> None:
    import gguf

    words = [f"word {number}" for number in range(2000)]
    path = tmp_path / "words.gguf"
    writer = gguf.GGUFWriter(path, "olmoe")
    writer.add_token_list(words)
    writer.add_token_scores([0.5] * len(words))
    writer.add_expert_count(8)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    quick, whole = GgufFile.find(tmp_path, "words.gguf").reader, gguf.GGUFReader(path)
    assert quick.get_field("olmoe.expert_count").contents() == 8
    (tensor,), (expected,) = quick.tensors, whole.tensors
    assert tensor.name == expected.name and np.array_equal(tensor.data, expected.data)
    tokens = whole.get_field("tokenizer.ggml.tokens")
    assert tokens is not None and len(tokens.data) == len(words)
    assert not quick.get_field("tokenizer.ggml.tokens").data


def test_precision_rounds_what_was_dequantized(tmp_path: Path) -> None:
    folder = tiny_texts.olmoe(tmp_path / "olmoe", intermediate_size=32)
    path = tiny_gguf.write(folder / "small.gguf", folder, "olmoe", "Q4_0")
    model = load_model(f"hf:{path}").model
    assert isinstance(model, Weighed)
    weights = model.weights()
    assert {weight.part for weight in weights} == {"router", "experts", "attention", "rest"}
    assert all(weight.parameter.dtype == torch.float32 for weight in weights)
    half = load_model(f"hf:{path}", dtype="bfloat16")
    assert half.name == "small.gguf,dtype=bfloat16" and half.provenance["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("architecture", "metadata", "change", "message"),
    [
        ("mamba", {}, None, "architecture 'mamba'.*gpt-oss, llama, olmoe, qwen2moe, qwen3moe"),
        ("llama", {"expert_count": 0}, None, "llama without experts"),
        ("olmoe", {"split__count": 2}, None, "merge them with llama-gguf-split"),
        ("olmoe", {"olmoe__rope__scaling__type": "yarn"}, None, "how its positions are scaled"),
        ("olmoe", {"expert_count": 4}, None, "put the config.json of this very model"),
        ("olmoe", {}, ("blk.0.ffn_up_exps.weight", None), "lacks 1 tensors.*blk.0.ffn_up_exps"),
        ("olmoe", {}, ("blk.0.extra.weight", np.zeros(4, np.float32)), "1 that it does not have.*extra"),
    ],
)
def test_what_cannot_be_read_is_refused(
    architecture: str,
    metadata: dict[str, Any],
    change: tuple[str, Any] | None,
    message: str,
    saved: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    tensors = tiny_gguf.tensors_of(saved("olmoe"), "olmoe")
    if change is not None:
        name, value = change
        tensors.pop(name, None)
        tensors |= {} if value is None else {name: value}
    path = tiny_gguf.write(tmp_path / "bad.gguf", saved("olmoe"), architecture, tensors=tensors, **metadata)
    with pytest.raises(UserError, match=message):
        load_model(f"hf:{path}")


def test_other_mistakes_are_sentences(saved: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", saved("olmoe"), "olmoe")
    with pytest.raises(UserError, match=r"There is no file 'none\.gguf'"):
        load_model(f"hf:{tmp_path},gguf=none.gguf")
    with pytest.raises(UserError, match="takes the name of a GGUF file"):
        load_model(f"hf:{tmp_path},gguf=")
    with pytest.raises(UserError, match="download it first"):
        load_model("hf:owner/name,gguf=model.gguf")
    shutil.copy(saved("qwen3moe") / "config.json", tmp_path)
    with pytest.raises(UserError, match=r"holds a model of type 'olmoe'.*is of 'qwen3_moe'"):
        load_model(f"hf:{path}")
    content = path.read_bytes()
    for end in (10, 200, 3000):
        path.write_bytes(content[:end])
        with pytest.raises(UserError, match="truncated or damaged"):
            load_model(f"hf:{path}")
