"""Whole sequences in other forms than servers send: the rows that come out are those that went in."""

import base64
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
from moeprobe.recordings.log_probs import read_log_probabilities, read_sequences
from moeprobe.recordings.reading import TraceFile
from tests.commands import run

# Four layers, of which the first is dense, and three of 11 experts for each token.
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_experts": 11, "num_experts_per_tok": 3,
}  # fmt: skip
LAYERS, EXPERTS, TOP_K = 3, 11, 3
# Prompt and generated tokens of each sequence.
SIZES = ((4, 3), (2, 7), (5, 1), (3, 3))


class Sequence:
    """One sequence, made up."""

    def __init__(self, number: int, prompt: int, generated: int) -> None:
        rng = np.random.default_rng([41, number])
        self.prompt = rng.integers(1000, 2000, prompt).tolist()
        self.generated = rng.integers(2000, 3000, generated).tolist()
        rows = prompt + generated - 1
        self.rows = rng.random((rows, LAYERS, EXPERTS)).argsort(-1)[..., :TOP_K]
        self.scores = (-rng.random(generated)).round(3).tolist()

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.generated


EVERY = [Sequence(number, *sizes) for number, sizes in enumerate(SIZES)]


def b64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def tensor(values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(np.asarray(values)).to(dtype)


def imported(path: Path, config: dict[str, Any] = CONFIG, **more: Any) -> tuple[ImportedExperts, TraceFile]:
    (path.parent / "config.json").write_text(json.dumps(config))
    arguments: dict[str, Any] = {"model_config": path.parent / "config.json", "overwrite": True} | more
    summary = import_routed_experts(path, path.parent / "t.parquet", **arguments)
    return summary, TraceFile(summary.path)


def refusal(path: Path, config: dict[str, Any] = CONFIG, **more: Any) -> str:
    with pytest.raises(UserError) as error:
        imported(path, config, **more)
    assert str(path) in str(error.value)
    return str(error.value)


def lines(folder: Path, *answers: Any) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
    return path


def saved(folder: Path, content: Any) -> Path:
    torch.save(content, folder / "batch.pt")
    return folder / "batch.pt"


def check(trace: TraceFile, *, split: bool = True, ids: bool = True) -> None:
    """The experts, token ids and which were generated of every sequence, in their order."""
    assert len(trace.ids) == len(EVERY) and list(trace.layers) == ["layers.1", "layers.2", "layers.3"]
    for name, sequence in zip(trace.ids, EVERY, strict=True):
        rows = len(sequence.rows)
        for layer in range(LAYERS):
            block = trace.read(f"layers.{layer + 1}", [name])
            assert block.valid[0, :rows].all() and not block.valid[0, rows:].any()
            np.testing.assert_array_equal(block.experts[0, :rows], np.sort(sequence.rows[:, layer], -1))
            if ids:
                assert block.token_ids is not None
                assert block.token_ids[0, :rows].tolist() == sequence.ids[:rows]
            if ids and split:
                assert block.generated is not None
                assert block.generated[0, :rows].tolist() == [t >= len(sequence.prompt) for t in range(rows)]
            else:
                assert block.generated is None


def one_by_one(folder: Path, answer: Callable[[Sequence], dict[str, Any]]) -> Path:
    return lines(folder, *(answer(sequence) for sequence in EVERY))


ANSWERS: dict[str, Callable[[Sequence], dict[str, Any]]] = {
    # prime-rl's TrainingSample.
    "nested lists": lambda one: {
        "prompt_ids": one.prompt, "completion_ids": one.generated, "completion_logprobs": one.scores,
        "routed_experts": one.rows.tolist(),
    },
    # rllm-org/rllm#543, and its order turned round.
    "pair": lambda one: {
        "prompt_ids": one.prompt, "response_ids": one.generated, "logprobs": one.scores,
        "routed_experts": [json.dumps({"shape": one.rows.shape, "dtype": "int32"}), b64(one.rows.astype("<i4"))],
    },
    "pair turned": lambda one: {
        "prompt_ids": one.prompt, "response_ids": one.generated,
        "extra": {"topk_ids": [b64(one.rows.astype("u1")), list(one.rows.shape)]},
    },
    # LMDeploy 0.18's /generate: lists where SGLang has base64; the request's input_ids put beside.
    "lmdeploy": lambda one: {
        "input_ids": one.prompt, "text": "…", "output_ids": one.generated,
        "meta_info": {"prompt_tokens": len(one.prompt), "completion_tokens": len(one.generated),
                      "output_token_logprobs": [[value, 7] for value in one.scores],
                      "routed_experts": one.rows.tolist()},
    },
    "shape without a type": lambda one: {
        "prompt_ids": one.prompt, "completion_ids": one.generated,
        "moe": {"routing": {"data": b64(one.rows.astype("<i2")), "shape": list(one.rows.shape)}},
    },
    "text without a shape": lambda one: {
        "prompt_ids": one.prompt, "completion_ids": one.generated, "expert_ids": b64(one.rows.astype("<i4")),
    },
    # No usual key: the form tells what is what.
    "keys of their own": lambda one: {
        "question": one.prompt, "reply": one.generated, "moe_trace": one.rows.tolist(), "reward": 0.5,
    },
    "the whole sequence": lambda one: {
        "tokens": one.ids, "loss_mask": [0] * len(one.prompt) + [1] * len(one.generated),
        "routing": one.rows.tolist(),
    },
    "the last row filled up": lambda one: {
        "input_ids": one.ids, "response_length": len(one.generated),
        "selected_experts": [*one.rows.tolist(), [[0] * TOP_K] * LAYERS],
    },
    "a sample within": lambda one: {
        "samples": [{"prompt_ids": one.prompt, "completion_ids": one.generated, "expert_ids": one.rows.tolist()}]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_json_of_other_forms(name: str, tmp_path: Path) -> None:
    path = one_by_one(tmp_path, ANSWERS[name])
    summary, trace = imported(path)
    assert summary.missing == [] and summary.requests == len(EVERY)
    assert summary.readers == ["generic"]
    check(trace)
    sequences = read_sequences(path)
    assert list(sequences) == trace.ids
    assert [tokens.ids.tolist() for tokens in sequences.values()] == [one.ids for one in EVERY]
    assert [tokens.prompt for tokens in sequences.values()] == [len(one.prompt) for one in EVERY]


@pytest.mark.parametrize("name", ["nested lists", "pair", "lmdeploy"])
def test_log_probabilities_are_found_too(name: str, tmp_path: Path) -> None:
    scores = read_log_probabilities(one_by_one(tmp_path, ANSWERS[name]))
    for values, one in zip(scores.values(), EVERY, strict=True):
        np.testing.assert_allclose(values, one.scores, rtol=1e-6)


def padded(parts: list[list[int]], *, left: bool) -> torch.Tensor:
    width = max(map(len, parts)) + 1
    rows = [[0] * (width - len(part)) + part if left else part + [0] * (width - len(part)) for part in parts]
    return torch.tensor(rows)


def _ragged() -> dict[str, Any]:
    return {
        "routed_experts": [tensor(one.rows, torch.uint8) for one in EVERY],
        "prompts": [tensor(one.prompt) for one in EVERY],
        "responses": [tensor(one.generated) for one in EVERY],
        "rollout_log_probs": [torch.tensor(one.scores) for one in EVERY],
    }


def _skyrl() -> dict[str, Any]:
    """SkyRL 0.3's GeneratorOutput: lists of lists, the last row of each filled with zeros."""
    return {
        "prompt_token_ids": [one.prompt for one in EVERY], "response_ids": [one.generated for one in EVERY],
        "rewards": [0.0] * len(EVERY), "loss_masks": [[1] * len(one.generated) for one in EVERY],
        "rollout_logprobs": [one.scores for one in EVERY],
        "rollout_expert_indices": [[*one.rows.tolist(), [[0] * TOP_K] * LAYERS] for one in EVERY],
    }  # fmt: skip


def _packed(last: bool = False, bounds: bool = True) -> dict[str, Any]:
    """Sequences one behind the other; ``last``: with a row for the last token of each."""
    rows = [np.concatenate([one.rows, one.rows[-1:, :, ::-1]]) if last else one.rows for one in EVERY]
    lengths = [len(one.ids) for one in EVERY]
    where = {"cu_seqlens": tensor([0, *itertools.accumulate(lengths)])} if bounds else {"seq_lens": lengths}
    return {
        "expert_ids": tensor(np.concatenate(rows), torch.int16),
        "input_ids": tensor(np.concatenate([one.ids for one in EVERY])),
        "prompt_lens": tensor([len(one.prompt) for one in EVERY]),
        **where,
    }


def _padded() -> dict[str, Any]:
    """Left-padded prompts and right-padded answers under keys that verl does not have."""
    prompts, answers = ([getattr(one, name) for one in EVERY] for name in ("prompt", "generated"))
    width = max(map(len, prompts)) + 1
    total = width + max(map(len, answers)) + 1
    mask, routed = torch.zeros(len(EVERY), total), torch.zeros(len(EVERY), total, LAYERS, TOP_K).short()
    for number, one in enumerate(EVERY):
        begin = width - len(one.prompt)
        mask[number, begin : begin + len(one.ids)] = 1
        routed[number, begin : begin + len(one.rows)] = tensor(one.rows, torch.int16)
    return {
        "selected_experts": routed, "attention_mask": mask.long(),
        "prompt_ids": padded(prompts, left=True), "response_ids": padded(answers, left=False),
    }  # fmt: skip


BATCHES: dict[str, Callable[[], dict[str, Any]]] = {
    "lists of tensors": _ragged,
    "skyrl": _skyrl,
    "packed by places": _packed,
    "packed by lengths": lambda: _packed(bounds=False),
    "padded": _padded,
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_torch(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path, BATCHES[name]())
    summary, trace = imported(path)
    assert summary.missing == [] and trace.ids == ["0", "1", "2", "3"] and summary.readers == ["generic"]
    check(trace)
    assert [tokens.ids.tolist() for tokens in read_sequences(path).values()] == [one.ids for one in EVERY]
    if name in ("lists of tensors", "skyrl"):
        for values, one in zip(read_log_probabilities(path).values(), EVERY, strict=True):
            np.testing.assert_allclose(values, one.scores, rtol=1e-6)


def test_a_batch_as_json_is_the_same(tmp_path: Path) -> None:
    summary, trace = imported(lines(tmp_path, _skyrl() | {"id": "step 3"}))
    assert summary.missing == [] and trace.ids == [f"step 3/{number}" for number in range(4)]
    check(trace)


def test_a_list_of_objects_is_one_sequence_each(tmp_path: Path) -> None:
    samples = [{"id": f"s{n}", "ids": tensor(one.ids), "routing": one.rows} for n, one in enumerate(EVERY)]
    _, trace = imported(saved(tmp_path, samples))
    assert trace.ids == ["s0", "s1", "s2", "s3"]
    check(trace, split=False)
    assert list(read_sequences(tmp_path / "batch.pt")) == trace.ids


def test_rows_of_the_last_tokens_are_kept_where_they_are_there(tmp_path: Path) -> None:
    _, trace = imported(saved(tmp_path, _packed(last=True)))
    block = trace.read("layers.2", ["1"])
    assert block.valid.sum() == len(EVERY[1].ids)
    np.testing.assert_array_equal(block.experts[0, -1], block.experts[0, -2])


def test_without_a_split_nothing_is_called_generated(tmp_path: Path) -> None:
    batch = _packed()
    del batch["prompt_lens"]
    check(imported(saved(tmp_path, batch))[1], split=False)


def test_without_ids_there_are_rows_alone(tmp_path: Path) -> None:
    check(imported(saved(tmp_path, {"routing": _ragged()["routed_experts"]}))[1], ids=False)


# Several readings, and none.


def _twice(one: Sequence) -> dict[str, Any]:
    """Two fields that may be the prompt, and two that may be routing."""
    other = [value + 1 for value in one.prompt]
    return {
        "given": one.prompt, "shown": other, "reply": one.generated, "before": one.rows.tolist(),
        "after": one.rows[:, :, ::-1].tolist(),
    }  # fmt: skip


def test_several_readings_are_named_and_chosen_by_keys(tmp_path: Path) -> None:
    path = one_by_one(tmp_path, _twice)
    assert "its routing may be before or after; say which with routing_key=" in refusal(path)
    said = refusal(path, routing_key="before")
    assert "its token ids may be " in said and "given + reply" in said and "shown + reply" in said
    keys: dict[str, Any] = {"routing_key": "before", "prompt_key": "given", "ids_key": "reply"}
    check(imported(path, **keys)[1])
    flags = [word for name, value in keys.items() for word in (f"--{name.replace('_', '-')}", value)]
    config = path.parent / "config.json"
    result = run("trace", "import", path, tmp_path / "c.parquet", "--model-config", config, *flags)
    assert result.exit_code == 0 and "read as generic" in result.output
    check(TraceFile(tmp_path / "c.parquet"))
    # The whole sequence by one key, within another object.
    path = one_by_one(
        tmp_path, lambda one: {"a": {"all": one.ids, "moe": one.rows.tolist()}, "b": one.ids[::-1]}
    )
    assert "its token ids may be a.all or b" in refusal(path)
    check(imported(path, ids_key="a.all")[1], split=False)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"routing_key": "nothing"}, "routing_key=\"nothing\" is no field"),
        ({"routing_key": "after", "ids_key": "before"}, "is no field of token ids; there are: given, shown, reply"),
        ({"routing_key": "after", "ids_key": "given"}, "given does not hold as many tokens as there are rows"),
        ({"routing_key": "after", "reader": "vllm"}, "leave reader=\"vllm\" out"),
        ({"gates": "relu"}, "gates is one of softmax, sigmoid; got 'relu'"),
    ],
)  # fmt: skip
def test_wrong_keys_are_a_sentence(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = one_by_one(tmp_path, _twice)
    with pytest.raises(UserError) as error:
        imported(path, **keys)
    assert words in str(error.value)


def test_base64_of_several_readings_names_them(tmp_path: Path) -> None:
    # 12 rows of 3 layers in one byte each are 9 rows of 4 layers too, and neither has token ids.
    said = refusal(lines(tmp_path, {"routed_experts": b64(np.zeros((12, 3, 3), np.uint8))}))
    assert "may be 3 layers of uint8 or 3 layers of int16 or 3 layers of int32 or 4 layers of uint8" in said


def test_what_no_reading_fits_comes_with_lines_that_convert_it(tmp_path: Path) -> None:
    one = EVERY[0]
    path = lines(tmp_path, {"prompt": "…", "moe": one.rows[..., :2].tolist()})
    config = path.parent / "config.json"
    config.write_text(json.dumps(CONFIG))
    result = run("trace", "import", path, tmp_path / "t.parquet", "--model-config", config)
    assert result.exit_code == 2
    sentence, *code = result.stderr.splitlines()
    assert (
        sentence.startswith("Error: ")
        and "no field has the layers of the model and 3 experts per token" in sentence
    )
    assert len(code) == 5
    # They do what they say.
    scope = {
        "rows": one.rows.astype(np.uint16),
        "prompt_ids": one.prompt,
        "ids": one.generated,
        "name": "made",
    }
    script = "\n".join(code).replace('"responses.jsonl"', repr(str(tmp_path / "made.jsonl")))
    exec(script, scope)
    _, trace = imported(tmp_path / "made.jsonl")
    assert trace.ids == ["made"]
    np.testing.assert_array_equal(trace.read("layers.3", ["made"]).experts[0], np.sort(one.rows[:, 2], -1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cu_seqlens": [0, 7, 5, 9]}, "cu_seqlens takes places that begin with 0 and only grow"),
        ({"cu_seqlens": [0, 7, 10]}, "expert_ids has 24 places, and its sequences 10 tokens"),
        ({"attention_mask": torch.full((2, 3), 4)}, "attention_mask takes 0 and 1"),
        (
            {"expert_ids": torch.zeros(2, 9, 3, 3).int(), "cu_seqlens": None},
            "marks the padding, is missing",
        ),
        ({"expert_ids": torch.full((24, 3, 3), 11).int()}, "expert 11, and the model has experts 0 to 10"),
    ],
)
def test_batches_that_do_not_go_together(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in refusal(saved(tmp_path, _packed() | change))


HUGE = torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize(
    "content",
    [
        {"routing": HUGE.expand(4, 2**40, 3, 3), "attention_mask": torch.ones(4, 8).long()},
        {"routing": HUGE.expand(4, 8, 2**40, 3), "attention_mask": torch.ones(4, 8).long()},
        {"routing": HUGE.expand(2**40, 3, 3)},
        {"routing": torch.zeros(6, 3, 3).int(), "input_ids": HUGE.expand(2**40)},
        {"routing": torch.zeros(6, 3, 3).int(), "tokens": list(range(7)), "loss_mask": HUGE.expand(2**40)},
        {"router_logits": HUGE.float().expand(2**40, 8, 11)},
        {"router_logits": [HUGE.float().expand(2**40, 11)] * 3},
        {"routing": torch.zeros(6, 3, 3).int(), "attention_mask": HUGE.expand(2**30, 2**30)},
    ],
    ids=[f"claim {number}" for number in range(8)],
)
def test_what_a_shape_claims_is_not_allocated(content: dict[str, Any], tmp_path: Path) -> None:
    # A mask that is none says nothing of what was generated.
    words = "every expert is 0" if "loss_mask" in content else "is no plain tensor"
    assert words in refusal(saved(tmp_path, content), gates="softmax")


@pytest.mark.parametrize(
    "answer",
    [
        {"routing": [[[0, 1, 2]] * 3, [[0, 1]] * 3]},
        {"routing": {"data": b64(np.zeros(9, np.uint8)), "shape": [2**31 - 1, 2**31 - 1, 3]}},
        {"routing": {"data": "!", "shape": [1, 3, 3]}},
        {"routing": [{"shape": [1, -3, 3]}, "AAAA"]},
        {"routed_experts": ["{" * 100, "AAAA"]},
        {"a": {"b": {"c": {"d": {"e": {"f": [[[0, 1, 2]] * 3]}}}}}},
        {"routing": [[[[0, 1, 2]] * 3], None, "x"], "input_ids": [[1, 2], None]},
        {"routing": [[[0, 1, 2]] * 3], "input_ids": [-7, 3]},
    ],
    ids=range(8),
)
def test_damaged_json_is_a_sentence(answer: dict[str, Any], tmp_path: Path) -> None:
    refusal(lines(tmp_path, answer))


# Logits of routers.


def logits() -> NDArray[np.float32]:
    """``(layers, tokens, experts)``."""
    return np.random.default_rng(5).normal(size=(LAYERS, 30, EXPERTS)).astype(np.float32)


def _softmax(values: NDArray[Any]) -> NDArray[np.float64]:
    powers = np.exp(values.astype(np.float64))
    return powers / powers.sum(-1, keepdims=True)


LOGITS: dict[str, Callable[[NDArray[np.float32]], Any]] = {
    "a tuple": lambda values: tuple(torch.from_numpy(values)),
    "one tensor": torch.from_numpy,
    "a list with a dense layer": lambda values: [None, *torch.from_numpy(values)],
    "by number": lambda values: {layer + 1: torch.from_numpy(part) for layer, part in enumerate(values)},
    "by name, turned": lambda values: {
        f"model.layers.{layer + 1}.mlp.gate": torch.from_numpy(values[layer]) for layer in (2, 0, 1)
    },
    "a field": lambda values: {"router_logits": tuple(torch.from_numpy(values)), "loss": 1.5},
}


@pytest.mark.parametrize("name", LOGITS)
def test_saved_logits_give_choices_and_gates(name: str, tmp_path: Path) -> None:
    values = logits()
    summary, trace = imported(saved(tmp_path, LOGITS[name](values)), gates="softmax")
    assert summary.unordered == [] and summary.tokens == 30 and trace.ids == ["batch.pt"]
    for layer in range(LAYERS):
        block = trace.read(f"layers.{layer + 1}", trace.ids)
        gates = _softmax(values[layer])
        np.testing.assert_array_equal(block.experts[0], np.argsort(-gates, -1)[:, :TOP_K])
        assert block.all_gates is not None
        np.testing.assert_allclose(block.all_gates[0], gates, rtol=1e-5)
        assert block.layer.gates_sum_to_one
    table = api.analyze_trace(tmp_path / "t.parquet").table
    assert {"gate_highest", "load_entropy"} <= set(table.metric)
    of_layer = table[(table.metric == "gate_highest") & (table.layer == "layers.2")]
    assert of_layer.value.item() == pytest.approx(_softmax(values[1]).max(-1).mean(), rel=1e-5)


def test_logits_of_a_padded_batch_are_split(tmp_path: Path) -> None:
    """As ``output_router_logits`` of transformers: all places of all sequences, one behind the other."""
    width = max(len(one.ids) for one in EVERY)
    mask = torch.tensor([[1] * len(one.ids) + [0] * (width - len(one.ids)) for one in EVERY])
    ids = torch.tensor([one.ids + [0] * (width - len(one.ids)) for one in EVERY])
    values = np.random.default_rng(2).normal(size=(LAYERS, len(EVERY) * width, EXPERTS)).astype(np.float32)
    content = {"router_logits": tuple(torch.from_numpy(values)), "attention_mask": mask, "input_ids": ids}
    _, trace = imported(saved(tmp_path, content), gates="sigmoid")
    assert trace.ids == ["0", "1", "2", "3"]
    for number, one in enumerate(EVERY):
        block = trace.read("layers.3", [str(number)])
        part = values[2, number * width : number * width + len(one.ids)]
        np.testing.assert_array_equal(block.experts[0], np.argsort(-part, -1)[:, :TOP_K])
        assert block.all_gates is not None
        np.testing.assert_allclose(block.all_gates[0], 1 / (1 + np.exp(-part.astype(np.float64))), rtol=1e-5)
        assert block.token_ids is not None and block.token_ids[0].tolist() == one.ids
        assert not block.layer.gates_sum_to_one and block.generated is None


@pytest.mark.parametrize(
    ("content", "config", "more", "words"),
    [
        (lambda values: values, CONFIG, {}, "add gates=\"softmax\" or gates=\"sigmoid\""),
        (lambda values: values, CONFIG | {"scoring_func": "sigmoid"}, {"gates": "softmax"}, "has scoring_func sigmoid"),
        (lambda values: values, CONFIG | {"n_group": 8}, {"gates": "sigmoid"}, "by n_group of config.json the model"),
        (lambda values: values[:2], CONFIG, {"gates": "softmax"}, "of 2 layers and 11 experts; the model has 3 layers"),
        (lambda values: values[..., :9], CONFIG, {"gates": "softmax"}, "of 3 layers and 9 experts"),
        (lambda values: values * np.float32("inf"), CONFIG, {"gates": "softmax"}, "that are no finite numbers"),
    ],
)  # fmt: skip
def test_logits_that_cannot_be_read(
    content: Any, config: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, tuple(torch.from_numpy(np.ascontiguousarray(content(logits())))))
    with pytest.raises(UserError) as error:
        imported(path, config, **more)
    assert words in str(error.value)


def test_layers_of_other_numbers_are_refused(tmp_path: Path) -> None:
    values = {f"layers.{layer + 5}": torch.from_numpy(part) for layer, part in enumerate(logits())}
    assert "are not the layers with experts" in refusal(saved(tmp_path, values), gates="softmax")
