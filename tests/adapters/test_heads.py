"""Models keep the head that they were saved with, and are served with as many experts per token as is set."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from moeprobe.adapters import open
from moeprobe.adapters.huggingface import HuggingfaceAdapter, heads
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch, stack
from moeprobe.routing.record import RoutingTrace
from tests.adapters import families
from tests.adapters.tiny_texts import texts, tokenizer
from tests.commands import refused, run

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_experts_per_tok": 3,
}  # fmt: skip
QWEN = SIZES | {"num_experts": 6, "moe_intermediate_size": 12}
TONES = {0: "warm", 1: "cold", 2: "even", 3: "dark"}


def save(folder: Path, model: Any) -> Path:
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("gate.weight"):
                value.normal_(0, 1)
            elif value.ndim >= 2 and "embed" not in name:
                value.normal_(0, 0.2)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = transformers.Qwen3MoeConfig(**QWEN, id2label=TONES)
    model = transformers.Qwen3MoeForSequenceClassification(config)
    return save(tmp_path_factory.mktemp("models") / "tones", model)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**QWEN))
    return save(tmp_path_factory.mktemp("models") / "writer", model)


def padded_batch(opened: Any, count: int) -> TokenBatch:
    return stack([opened.framing.clean(text) for text in texts(count)])


def test_a_classifier_gives_its_own_scores_in_the_order_of_sorted_classes(classifier: Path) -> None:
    opened = open.load_model(f"hf:{classifier}", device="cpu")
    assert opened.class_names == ("cold", "dark", "even", "warm")
    made = padded_batch(opened, 7)
    scores = opened.model.trace(made)[0]
    assert scores is not None
    net = transformers.AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    for row, length in enumerate(made.present.sum(1).tolist()):
        with torch.no_grad():  # text by text, without padding
            (expected,) = net(input_ids=made.ids[row : row + 1, :length]).logits
        torch.testing.assert_close(scores[row], expected[[1, 3, 2, 0]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [None, 7])
def test_padding_of_a_classifier_is_found_by_its_presence_alone(padding: int | None) -> None:
    """Without a padding token, or with one that is in a text too, the library would read another token."""
    torch.manual_seed(5)
    config = transformers.MixtralConfig(
        **SIZES | {"pad_token_id": padding}, num_local_experts=6, id2label=TONES
    )
    net = transformers.MixtralForSequenceClassification(config).eval()
    adapter = HuggingfaceAdapter(net)
    ids = torch.randint(8, 99, (3, 9), generator=torch.Generator().manual_seed(1))
    present = torch.ones(3, 9, dtype=torch.bool)
    present[1, 4:] = False
    present[2, 8:] = False
    made = TokenBatch(ids.masked_fill(~present, 0), present, present, 0)
    scores = adapter.trace(made)[0]
    assert scores is not None
    for row, length in enumerate(present.sum(1).tolist()):
        with torch.no_grad():
            hidden = net.model(input_ids=ids[row : row + 1, :length]).last_hidden_state[0, -1]
        expected = net.score(hidden)[[1, 3, 2, 0]]
        torch.testing.assert_close(scores[row], expected, rtol=1e-4, atol=1e-5)
    assert config.pad_token_id == padding


def test_the_accuracy_of_a_classifier_is_that_of_its_labels(classifier: Path, tmp_path: Path) -> None:
    opened = open.load_model(f"hf:{classifier}", device="cpu")
    scores = opened.model.trace(padded_batch(opened, 22))[0]
    assert scores is not None
    answers = [opened.class_names[number] for number in scores.argmax(1).tolist()]
    labels = [name if row % 4 else "dark" for row, name in enumerate(answers)]
    labels[-4:] = opened.class_names
    right = np.mean([one == other for one, other in zip(labels, answers, strict=True)])
    file = tmp_path / "labels.jsonl"
    rows = zip(texts(22), labels, strict=True)
    file.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    shown = json.loads(run("eval", f"hf:{classifier}", "--data", f"text:{file}", "--json").output)
    accuracy = next(row["value"] for row in shown["table"] if row["metric"] == "accuracy")
    assert accuracy == pytest.approx(right) and 0 < right < 1
    assert "predicts classes and gives no scores of the next token" in refused(
        "flips", f"hf:{classifier}", "--data", f"text:{file}", "--view", "embedding_noise"
    )


def test_one_score_is_no_class() -> None:
    config = transformers.Qwen3MoeConfig(**QWEN, num_labels=1)
    adapter = HuggingfaceAdapter(transformers.Qwen3MoeForSequenceClassification(config))
    ids = torch.arange(3, 13)[None]
    there = torch.ones(1, 10, dtype=torch.bool)
    assert adapter._head.predicts == heads.SCORE and adapter.class_names == ()
    assert adapter.trace(TokenBatch(ids, there, there, 0))[0] is None
    with pytest.raises(UserError, match="predicts one score and gives no scores of the next token"):
        adapter.log_probabilities(TokenBatch(ids, there, there, 0))


@pytest.mark.parametrize("names", [["os"], ["PreTrainedModel"], ["BertModel"], [3], "no list", None])
def test_a_file_names_no_class_that_is_not_its_own(names: Any) -> None:
    config = transformers.MixtralConfig(**SIZES)
    config.architectures = names
    assert heads.class_of(transformers, config) is transformers.AutoModelForCausalLM
    config.architectures = ["MixtralForTokenClassification"]
    assert heads.class_of(transformers, config) is transformers.MixtralForTokenClassification


def test_a_model_of_pictures_keeps_the_head_of_its_texts(tmp_path: Path) -> None:
    model = families.complete("glm4v_moe")
    model.save_pretrained(tmp_path)
    opened: Any = open.load_model(f"hf:{tmp_path}", device="cpu")
    ids = torch.randint(3, 90, (2, 8), generator=torch.Generator().manual_seed(2))
    there = torch.ones(2, 8, dtype=torch.bool)
    found = opened.model.log_probabilities(TokenBatch(ids, there, there, 0))
    with torch.no_grad():
        own = model(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(found[:, 1:], own, rtol=1e-4, atol=1e-5)
    assert opened.provenance["class"] == "Glm4vMoeForConditionalGeneration"
    assert opened.provenance["experts"] == [
        "layers.1: 8 of 8 experts changed, and exactly their tokens with them"
    ]


@pytest.mark.parametrize(("setting", "top_k"), [("1", 1), ("5", 5), ("all", 6)])
def test_experts_per_token_are_set(writer: Path, setting: str, top_k: int) -> None:
    opened = open.load_model(f"hf:{writer},top_k={setting}", device="cpu")
    assert opened.name == f"writer,top_k={setting}"
    assert opened.provenance["served"] == {"top_k": setting if setting == "all" else top_k}
    made = padded_batch(opened, 3)
    layer = opened.model.trace(made)[1].layers["layers.1"]
    assert layer.selected.shape[-1] == top_k and bool((layer.selected >= 0).all())
    config = transformers.AutoConfig.from_pretrained(writer)
    config.num_experts_per_tok = top_k
    net = transformers.AutoModelForCausalLM.from_pretrained(writer, config=config).eval()
    with torch.no_grad():
        logits = net(input_ids=made.ids, attention_mask=made.present.long()).logits
    expected = logits[torch.arange(3), made.last]
    torch.testing.assert_close(opened.model.trace(made)[0], expected, rtol=1e-4, atol=1e-5)


def test_two_numbers_of_experts_are_compared_in_one_command(writer: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(texts(21)))
    two = run("confidence", f"hf:{writer}", f"hf:{writer},top_k=2", "--data", f"text:{file}", "--json")
    assert {row["checkpoint"] for row in json.loads(two.output)["table"]} >= {"writer", "writer,top_k=2"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("top_k=7", "top_k takes a number from 1 to 6"),
        ("top_k=0", "top_k takes a number from 1 to 6"),
        ("top_k=-1", "top_k takes a whole number, or all; got '-1'"),
        ("top_k=²", "top_k takes a whole number, or all"),
        ("top_k=2,top_k=3", "has the setting top_k twice"),
        ("capacity=2", "have the settings top_k, dtype, .*; leave 'capacity' out"),
        ("dtype=float8", "float8"),
        (
            "experts_implementation=owner/kernels",
            "takes one of eager, batched_mm, grouped_mm; got 'owner/kernels'",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_one_sentence(writer: Path, setting: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        open.load_model(f"hf:{writer},{setting}", device="cpu")


def test_a_family_of_a_fixed_number_of_experts_is_said(tmp_path: Path) -> None:
    families.complete("switch_transformers").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"does not say in config\.json how many experts a token gets"):
        open.load_model(f"hf:{tmp_path},top_k=2", device="cpu")


def single(**changes: Any) -> Any:
    torch.manual_seed(6)
    config = transformers.MixtralConfig(**SIZES | {"num_experts_per_tok": 1}, num_local_experts=6, **changes)
    net = transformers.MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for layer in net.model.layers:
            layer.mlp.gate.weight.normal_(0, 1.5)
            layer.mlp.experts.down_proj.normal_(0, 0.4)
    return net


def test_an_expert_of_weight_one_has_the_softmax_as_its_gate() -> None:
    net = single()
    adapter = HuggingfaceAdapter(net)
    reader = adapter._layers["layers.0"].reader
    assert reader is not None and reader.constant_weight == 1 and reader.gate == "softmax"
    assert [row["constant_weight"] for row in adapter.describe()["layers"]] == [1, 1]
    ids = torch.randint(3, 300, (2, 13), generator=torch.Generator().manual_seed(3))
    there = torch.ones(2, 13, dtype=torch.bool)
    made = TokenBatch(ids, there, there, 0)
    routing = adapter.trace(made, logits=False)[1]
    seen: list[torch.Tensor] = []
    handle = net.model.layers[0].mlp.gate.register_forward_hook(lambda *args: seen.append(args[-1][0]))
    with torch.no_grad():
        own = net(input_ids=ids).logits
    handle.remove()
    layer = routing.layers["layers.0"]
    expected = np.exp(seen[0].double().numpy())
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(layer.gates.flatten(0, 1), expected, rtol=1e-4, atol=1e-7)
    assert layer.gates_sum_to_one
    # Its own choices change nothing; another expert counts with a weight of one, however small its gate.
    own_probabilities = own.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    again = adapter.replayed_log_probabilities(made, routing)
    torch.testing.assert_close(again[:, 1:], own_probabilities, rtol=1e-4, atol=1e-5)
    least = layer.gates.argmin(-1, keepdim=True).to(torch.int16)
    forced = RoutingTrace({"layers.0": dataclasses.replace(layer, selected=least)})
    gate = net.model.layers[0].mlp.gate
    gate.forward = lambda hidden: (  # the library's block with other experts, and weights of one
        hidden.reshape(-1, 24) @ gate.weight.T, torch.ones(26, 1), least.flatten(0, 1).long()
    )  # fmt: skip
    with torch.no_grad():
        other = net(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    del gate.forward
    found = adapter.replayed_log_probabilities(made, forced)[:, 1:]
    torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
    assert float((other - own_probabilities).abs().max()) > 0.01


def test_a_biased_choice_of_weight_one_is_explained_by_its_bias() -> None:
    """DeepSeek's router: sigmoids and a bias choose, and the only weight is divided by itself."""
    net = families.small("deepseek_v3", num_experts_per_tok=1, n_group=1)
    with torch.no_grad():
        for layer in net.model.layers[1:]:
            layer.mlp.gate.weight.normal_(0, 1)
    adapter = HuggingfaceAdapter(net)
    reader = adapter._layers["layers.1"].reader
    assert reader is not None and reader.constant_weight is not None
    assert reader.bias is not None and reader.gate == "sigmoid"


@pytest.mark.parametrize("probe", ["trace", "log_probabilities"])
def test_what_the_model_raises_later_is_said_with_its_line(probe: str) -> None:
    net = families.complete("mixtral")
    adapter = HuggingfaceAdapter(net)

    def raising(*args: Any, **kwargs: Any) -> None:
        raise KeyError("kernel of the last layer")

    net.model.layers[-1].forward = raising
    ids = torch.arange(3, 13)[None]
    there = torch.ones(1, 10, dtype=torch.bool)
    with pytest.raises(
        UserError, match=r"'mixtral' raised KeyError: 'kernel of the last layer' .*test_heads\.py:\d+"
    ):
        getattr(adapter, probe)(TokenBatch(ids, there, there, 0))
