"""Models of Hugging Face's transformers: what is traced is what their routers say, read here by hooks of our own."""

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.adapters import open
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.errors import UserError
from moeprobe.inputs.spans import align
from moeprobe.inputs.texts import TextFraming, TokenBatch, stack
from moeprobe.inputs.views.embedding_noise import EmbeddingNoise
from moeprobe.runtime import hub
from tests.adapters import families
from tests.adapters.tiny_texts import olmoe, texts, tokenizer
from tests.commands import refused

TRIED = sorted(set(families.recorded()) - families.REFUSED - families.NOT_FOLLOWING)
# One of each form of a router's outputs.
FORMS = ["olmoe", "gpt_oss", "deepseek_v3", "switch_transformers", "llama4", "jetmoe"]


def ids(rows: int = 2, length: int = 9, *, vocabulary: int = 96, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary // 2, (rows, length), generator=random)


def batch(tokens: torch.Tensor) -> TokenBatch:
    there = torch.ones(tokens.shape, dtype=torch.bool)
    return TokenBatch(tokens, there, there, 0)


def listen(model: HuggingfaceAdapter, tokens: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    """The outputs of every router, by hooks of this test."""
    heard: dict[str, tuple[Any, ...]] = {}
    handles = [
        layer.module.register_forward_hook(
            lambda *args, name=name: heard.update(
                {name: args[-1] if isinstance(args[-1], tuple) else (args[-1],)}
            )
        )
        for name, layer in model._layers.items()
    ]
    with torch.inference_mode():
        model._body(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    for handle in handles:
        handle.remove()
    return heard


def chosen(outputs: tuple[Any, ...]) -> list[set[int]]:
    """The experts of each token as a router's outputs say, read token by token, form by form."""
    if len(outputs) == 5 and isinstance(
        outputs[3], list
    ):  # JetMoE: its logits come last, its counts before them
        return [set(np.argsort(-row.numpy(), kind="stable")[:2].tolist()) for row in outputs[4]]
    if len(outputs) == 1:  # DBRX: logits alone, of which its block takes the two highest
        return [set(np.argsort(-row.numpy(), kind="stable")[:2].tolist()) for row in outputs[0]]
    if len(outputs) == 2:  # Llama 4: a weight for each expert, 0 for those that were not chosen
        return [set(np.flatnonzero(row.numpy()).tolist()) for row in outputs[0]]
    if outputs[0].dtype == torch.int64:  # Switch: a mark on the only choice
        return [set(np.flatnonzero(row.numpy()).tolist()) for row in outputs[0].flatten(0, 1)]
    # All others: logits, weights, indices.
    return [set(row.tolist()) for row in outputs[2].reshape(-1, outputs[2].shape[-1])]


def check_family(family: str) -> HuggingfaceAdapter:
    model = HuggingfaceAdapter(families.complete(family))
    tokens = ids()
    _, routing = model.trace(batch(tokens))
    heard = listen(model, tokens)
    assert tuple(routing.layers) == model.layer_names and routing.layers.keys() == heard.keys()
    for name, layer in routing.layers.items():
        assert layer.gates.shape == (2, 9, layer.num_experts) and torch.isfinite(layer.gates).all()
        own = [set(row[row >= 0].tolist()) for row in layer.selected.flatten(0, 1)]
        assert own == chosen(heard[name]), name
        assert layer.processed[layer.selected >= 0].all()
        # Re-sorted: no later choice scores higher.
        scores = layer.gates if layer.scores is None else layer.scores
        taken = scores.gather(-1, layer.selected.long().clamp_min(0))
        assert (taken.diff(dim=-1) <= 0)[layer.selected[..., 1:] >= 0].all()
        if layer.gates_sum_to_one:
            torch.testing.assert_close(layer.gates.sum(-1), torch.ones(2, 9))
    return model


@pytest.mark.parametrize("family", families.parameters(FORMS))
def test_the_choice_is_the_routers_own(family: str) -> None:
    check_family(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(families.distinct([*FORMS, *TRIED])) - set(FORMS)))
def test_the_choice_is_the_routers_own_in_every_kind_of_family(family: str) -> None:
    check_family(family)


@families.of_pinned_release
def test_the_families_that_are_refused_exist() -> None:
    assert set(families.recorded()) >= families.REFUSED | families.NOT_FOLLOWING
    assert len(TRIED) >= 66


@pytest.mark.parametrize("family", sorted(families.REFUSED))
def test_routers_that_do_not_say_what_they_chose_are_refused(family: str) -> None:
    with pytest.raises(UserError, match="do not say which experts they chose"):
        HuggingfaceAdapter(families.small(family, is_moe=True))


def test_a_model_without_routers_is_refused() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(UserError, match="'llama' has no router"):
        HuggingfaceAdapter(LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)))


def test_a_biased_choice_of_groups_is_read_as_it_is() -> None:
    """DeepSeek-V3: top-k of the logits is another choice; sigmoid + bias explains the order, in the chosen group."""
    model = check_family("deepseek_v3")
    assert model.layer_names == ("layers.1", "layers.2") and model.dense_layers == ("layers.0",)
    tokens = ids(4, 12)
    _, routing = model.trace(batch(tokens))
    heard = listen(model, tokens)
    differs = 0
    for name, layer in routing.layers.items():
        logits = heard[name][0].double().numpy()
        bias = model._layers[name].module.e_score_correction_bias.double().numpy()  # type: ignore[operator]
        gates = 1 / (1 + np.exp(-logits))
        assert layer.scores is not None and not layer.gates_sum_to_one
        np.testing.assert_allclose(layer.gates.flatten(0, 1), gates, atol=1e-6)
        np.testing.assert_allclose(layer.scores.flatten(0, 1), gates + bias, atol=1e-6)
        top = np.sort(np.argsort(-logits, axis=1)[:, :2], axis=1)
        differs += int((np.sort(layer.selected.flatten(0, 1).numpy(), axis=1) != top).any(1).sum())
    assert differs > 0


@pytest.mark.parametrize("trained", [True, False])
def test_a_capacity_is_lifted_unless_it_is_to_stay(trained: bool) -> None:
    """Switch, one place per expert and text: a later token of the same choice is dropped, and has chosen it."""
    model = HuggingfaceAdapter(
        families.small("switch_transformers", expert_capacity=1), trained_capacity=trained
    )
    tokens = ids(2, 12)
    _, routing = model.trace(batch(tokens))
    for name, layer in routing.layers.items():
        logits = listen(model, tokens)[name][2]
        np.testing.assert_array_equal(layer.selected[..., 0], logits.argmax(-1))
        expected = np.zeros((2, 12), dtype=bool)
        for row in range(2):
            seen: set[int] = set()
            for place, expert in enumerate(layer.selected[row, :, 0].tolist()):
                expected[row, place] = not trained or expert not in seen
                seen.add(expert)
        np.testing.assert_array_equal(layer.processed[..., 0], expected)
        assert layer.token_local != trained


def test_a_capacity_of_the_whole_batch_is_refused() -> None:
    with pytest.raises(UserError, match="all texts of a batch"):
        HuggingfaceAdapter(families.small("nllb_moe"), trained_capacity=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return olmoe(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Checkpoint:
    return open.load_model(f"hf:{folder}", device="cpu")


@pytest.fixture(scope="module")
def framing(opened: Checkpoint) -> TextFraming:
    assert isinstance(opened.framing, TextFraming)
    return opened.framing


def several(framing: TextFraming, chosen: list[str]) -> TokenBatch:
    return stack([framing.clean(text) for text in chosen])


def test_gates_and_choice_of_a_softmax_router_in_float64(opened: Checkpoint, framing: TextFraming) -> None:
    model: Any = opened.model
    inputs: list[torch.Tensor] = []
    gate = model.model.model.layers[1].mlp.gate
    handle = gate.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    made = several(framing, texts(3))
    layer = model.trace(made)[1].layers["layers.1"]
    handle.remove()
    tokens = inputs[0].reshape(*made.ids.shape, -1).double().numpy()
    weight = gate.weight.double().numpy()
    for row, place in np.ndindex(made.ids.shape):
        if not made.present[row, place]:
            assert not layer.valid[row, place]
            continue
        logits = weight @ tokens[row, place]
        gates = np.exp(logits - logits.max())
        gates /= gates.sum()
        np.testing.assert_allclose(layer.gates[row, place], gates, rtol=1e-4, atol=1e-6)
        assert layer.selected[row, place].tolist() == np.argsort(-gates)[:2].tolist()
    assert layer.num_prefix_tokens == 1 and layer.valid[:, 0].all() and layer.grid is None
    assert layer.router == "olmoe" and layer.modality.token == "token"


def test_padding_and_batch_mates_change_nothing(opened: Checkpoint, framing: TextFraming) -> None:
    chosen_texts = ["7.", *texts(8)]
    scores, together = opened.model.trace(several(framing, chosen_texts))
    assert scores is not None
    for row, text in enumerate(chosen_texts):
        one, alone = opened.model.trace(several(framing, [text]))
        assert one is not None
        torch.testing.assert_close(scores[row : row + 1], one, rtol=1e-4, atol=1e-5)
        for name, layer in alone.layers.items():
            length = layer.gates.shape[1]
            whole = together.layers[name]
            torch.testing.assert_close(whole.gates[row, :length], layer.gates[0], rtol=1e-4, atol=1e-5)
            assert torch.equal(whole.selected[row, :length], layer.selected[0])
            assert whole.valid[row].tolist() == [True] * length + [False] * (whole.gates.shape[1] - length)


def test_scores_are_those_of_the_next_token(opened: Checkpoint, framing: TextFraming) -> None:
    model: Any = opened.model
    for text in texts(3):
        made = several(framing, [text])
        with torch.inference_mode():
            expected = model.model(input_ids=made.ids).logits[:, -1]
        torch.testing.assert_close(opened.model.trace(made)[0], expected, rtol=1e-5, atol=1e-6)


def test_special_tokens_behind_a_text_are_left_out(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer(eos=True).save_pretrained(tmp_path)
    found = open.load_model(f"hf:{tmp_path}", device="cpu")
    assert isinstance(found.framing, TextFraming)
    made = several(found.framing, [texts(1)[0]])
    layer = found.model.trace(made)[1].layers["layers.0"]
    assert made.ids[0, -1] == 2 and not layer.valid[0, -1] and layer.valid[0, :-1].all()


def test_noise_is_added_in_units_of_the_embeddings(opened: Checkpoint, framing: TextFraming) -> None:
    model: Any = opened.model
    table = model.model.model.embed_tokens.weight.double().numpy()
    rms = np.sqrt((table**2).mean())
    (sample,) = EmbeddingNoise().perturb(
        texts(1)[0], framing=framing, severities=[0.5], rng=np.random.default_rng(0)
    )
    assert sample.noise is not None and (sample.noise[0] == 0).all()  # <s> gets none
    made = dataclasses.replace(stack([sample]), noise=sample.noise[None], sigma=torch.tensor([0.5]))
    seen: list[torch.Tensor] = []
    handle = model.model.model.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.trace(made, logits=False)
    handle.remove()
    expected = table[made.ids[0]] + 0.5 * rms * sample.noise.double().numpy()
    np.testing.assert_allclose(seen[0][0], expected, atol=1e-6)


def test_the_pass_ends_behind_the_last_layer_asked_for(opened: Checkpoint, framing: TextFraming) -> None:
    model: Any = opened.model
    ran: list[str] = []
    layers = model.model.model.layers
    handles = [
        layers[0].mlp.experts.register_forward_hook(lambda *_: ran.append("experts 0")),
        layers[1].register_forward_hook(lambda *_: ran.append("layer 1")),
    ]
    made = several(framing, texts(2))
    scores, routing = opened.model.trace(made, layers=["layers.0"], logits=False)
    assert scores is None and list(routing.layers) == ["layers.0"] and ran == []
    _, both = opened.model.trace(made)
    for handle in handles:
        handle.remove()
    assert ran == ["experts 0", "layer 1"]
    assert torch.equal(both.layers["layers.0"].selected, routing.layers["layers.0"].selected)


def test_what_cannot_be_opened_is_one_sentence(folder: Path, opened: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder '/no/such/model'"):
        open.load_model("hf:/no/such/model")
    with pytest.raises(UserError, match=r"There is no MoE layer 'layers.7'"):
        opened.model.trace(opened.framing.blank(), layers=["layers.7"])
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for change, reason in (
        ({"num_hidden_layers": 3}, "lacks .* parameters, e.g. model.layers.2"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "code.Own"}}, "cannot be loaded"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=reason):
            open.load_model(f"hf:{tmp_path}")


def test_a_folder_is_called_by_its_own_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert open.load_model("hf:.", device="cpu").name == "tiny"


def test_gates_that_are_no_numbers_are_refused() -> None:
    net = families.small("olmoe")
    model = HuggingfaceAdapter(net)
    with torch.no_grad():
        net.model.layers[0].mlp.gate.weight[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"The gates of .*layers\.0.* are not finite"):
        model.trace(batch(ids()))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["nobody/nothing", "x" * 10_000], ids=["owner", "long"])
def test_without_the_hub_a_name_is_one_sentence(name: str) -> None:
    with hub.downloads(), pytest.raises(UserError, match="cannot be loaded") as caught:
        open.load_model(f"hf:{name}")
    assert "\n" not in str(caught.value)
    assert name[:30] in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing", "x" * 10_000], ids=["owner", "name", "long"])
def test_no_hub_is_asked_unless_somebody_says_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(
        UserError, match=r"no model of that name in the local cache; with api\.downloads\(\) the hub"
    ):
        open.load_model(f"hf:{name}")


def test_a_fifo_in_a_folder_of_a_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"config\.json: it is not a regular file"):
        open.load_model(f"hf:{tmp_path}")


def test_a_token_of_spaces_has_its_place(framing: TextFraming) -> None:
    """Tokenizers trim spaces off; every token of the text but <s> lies somewhere, and corresponds to itself."""
    for text in ("two  spaces", "  before", "behind ", "Łódź 🦊  7"):
        clean = framing.clean(text)
        assert (clean.spans[1:, 0] < clean.spans[1:, 1]).all(), (text, clean.spans)
        assert clean.spans.max() <= len(text)
        assert align(clean.spans, clean.spans).tolist() == [-1, *range(1, len(clean.ids))]


def test_an_encoder_has_no_probabilities_of_texts() -> None:
    texts = TokenBatch(torch.tensor([[3, 4, 5]]), *(torch.ones(1, 3, dtype=torch.bool),) * 2, 0)
    with pytest.raises(UserError, match="gives no scores of the next token"):
        HuggingfaceAdapter(families.small("switch_transformers")).log_probabilities(texts)


def copied(folder: Path, into: Path, **changes: Any) -> Path:
    """A model's folder with other values in its configuration."""
    into.mkdir()
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(config | changes))
    return into


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/passwd", "sub/a.safetensors", "..", "weights.bin", 3]
)
def test_an_index_that_names_weights_elsewhere_is_refused(folder: Path, tmp_path: Path, name: Any) -> None:
    model = copied(folder, tmp_path / "model")
    weights = model / "model.safetensors"
    weights.rename(tmp_path / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="names weights that are not in its folder"):
        open.load_model(f"hf:{model}")


def test_weights_elsewhere_by_the_configuration_or_an_adapter(folder: Path, tmp_path: Path) -> None:
    model = copied(folder, tmp_path / "a", transformers_weights="../b/model.safetensors")
    with pytest.raises(UserError, match="names weights that are not in its folder"):
        open.load_model(f"hf:{model}")
    adapter = copied(folder, tmp_path / "c")
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/other"}')
    with pytest.raises(UserError, match="holds an adapter"):
        open.load_model(f"hf:{adapter}")


@pytest.mark.parametrize(
    "changes",
    [
        {"_attn_implementation": "org/kernel"},
        {"attn_implementation": "org/kernel"},
        {"_attn_implementation_internal": "org/kernel", "_experts_implementation_internal": "deepgemm"},
        {"_experts_implementation": "org/kernel"},
        {"experts_implementation": "deepgemm"},
    ],
)
def test_no_kernel_that_a_configuration_names_is_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    from transformers.integrations import hub_kernels

    asked: list[object] = []
    for name in ("load_and_register_attn_kernel", "lazy_load_kernel", "get_kernel"):
        monkeypatch.setattr(hub_kernels, name, lambda *args, **_: asked.append(args), raising=False)
    clean = open.load_model(f"hf:{folder}").model
    model = open.load_model(f"hf:{copied(folder, tmp_path / 'model', **changes)}").model
    assert isinstance(model, HuggingfaceAdapter) and isinstance(clean, HuggingfaceAdapter) and not asked
    for kind in ("_attn_implementation", "_experts_implementation"):
        assert getattr(model.model.config, kind) == getattr(clean.model.config, kind)


def test_nobody_is_asked_to_run_code_of_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def agree(*args: object) -> str:
        asked.append(args)
        return "y"

    monkeypatch.setattr("builtins.input", agree)
    # A type that no automatic class of the library builds.
    model = copied(
        folder, tmp_path / "model", model_type="aimv2_text_model", auto_map={"AutoModel": "evil.Evil"}
    )
    (model / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    for command in (("inspect",), ("confidence", "--data", "digits")):
        refused(command[0], f"hf:{model}", *command[1:])
    assert not asked and not (tmp_path / "ran").exists()


def test_weights_that_are_no_safetensors_limit_no_layers(folder: Path, tmp_path: Path) -> None:
    model = copied(folder, tmp_path / "model")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors") as caught:
        open.load_model(f"hf:{model}")
    assert "num_hidden_layers" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10_000_000}, "num_hidden_layers takes a whole number from 0 to"),
        ({"num_hidden_layers": -1}, "num_hidden_layers takes a whole number"),
        ({"num_experts": 10**9}, "num_experts takes a whole number from 0 to 32,767"),
        ({"num_experts_per_tok": 1_000_000}, "num_experts_per_tok takes a whole number from 1 to 8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok takes a whole number from 1 to 8"),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_it_is_built(
    folder: Path, tmp_path: Path, changes: dict[str, int], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        open.load_model(f"hf:{copied(folder, tmp_path / 'model', **changes)}")
