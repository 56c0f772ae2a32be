"""Dumps of trainers and recorders: the same routing is the same trace as that of a server."""

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
from moeprobe.recordings.import_log import import_trace
from moeprobe.recordings.log_probs import read_log_probabilities, read_sequences
from moeprobe.recordings.reading import TraceFile
from tests.commands import run
from tests.recordings import dumps, serving
from tests.recordings.dumps import TOKENS
from tests.recordings.serving import GENERATED, PROMPT, ROWS, routing, with_dense


def imported(folder: Path, path: Path | list[Path], to: str = "t.parquet", **more: Any) -> ImportedExperts:
    model = folder / "config.json"
    config = more.pop("config", serving.DEEPSEEK)
    model.write_text(json.dumps(config))
    return import_routed_experts(path, folder / to, model_config=model, overwrite=True, name="m", **more)


def same_as_server(folder: Path, *responses: Any, config: Any = serving.DEEPSEEK) -> None:
    """The imported trace is, byte for byte, that of these responses."""
    path, _ = serving.write(folder, *responses)
    imported(folder, path, "server.parquet", config=config)
    assert (folder / "server.parquet").read_bytes() == (folder / "t.parquet").read_bytes()


def refusal(folder: Path, path: Path | list[Path], **more: Any) -> str:
    with pytest.raises(UserError) as error:
        imported(folder, path, **more)
    sentence = str(error.value)
    assert sentence.endswith(".") and "\n" not in sentence and sentence.isprintable(), sentence
    assert not (folder / "t.parquet").exists()
    return sentence


def test_outputs_of_tensorrt_llm(tmp_path: Path) -> None:
    ids = routing()
    path, _ = serving.write(tmp_path, dumps.tensorrt_llm(ids))
    found = imported(tmp_path, path)
    assert found.readers == ["tensorrt_llm"] and found.tokens == ROWS and not found.missing
    config = path.parent / "config.json"
    printed = run("trace", "import", path, tmp_path / "again.parquet", "--model-config", config).output
    assert "read as tensorrt_llm (also vLLM's class LLM)." in " ".join(printed.split())
    same_as_server(tmp_path, dumps.as_vllm(ids, "r"))
    short = dumps.tensorrt_llm(ids[:-3])
    short["outputs"].append({"index": 1, "token_ids": [], "routed_experts": None})
    path, _ = serving.write(tmp_path, short)
    found = imported(tmp_path, path)
    assert (
        found.left_out == ["r/1"] and "fewer rows than stated tokens less one, 3 in all" in found.missing[1]
    )


@pytest.mark.parametrize("kind", ["int32", "uint8", "tensor"])
def test_rollouts_of_slime(kind: str, tmp_path: Path) -> None:
    ids = routing()
    more: dict[str, Any] = {"tensor": True} if kind == "tensor" else {"dtype": kind}
    found = imported(tmp_path, dumps.slime(tmp_path / "3.pt", ids, **more))
    assert found.readers == ["slime"] and found.left_out == ["3/8"] and found.tokens == ROWS
    aborted = {"id": "3/8", "choices": [{"routed_experts": None}]}
    same_as_server(tmp_path, dumps.as_vllm(ids, "3/7"), aborted)
    sequences = read_sequences(tmp_path / "3.pt")
    assert sequences["3/7"].ids.tolist() == TOKENS and sequences["3/7"].prompt == PROMPT


@pytest.mark.parametrize(("left", "right"), [(2, 3), (0, 0), (0, 4)])
@pytest.mark.parametrize("nested", [True, False])
def test_batches_of_verl(left: int, right: int, nested: bool, tmp_path: Path) -> None:
    ids = routing()
    path = dumps.verl(tmp_path / "batch.pt", ids, left=left, right=right, nested=nested)
    found = imported(tmp_path, path)
    assert found.readers == ["verl"] and found.tokens == ROWS and not found.missing
    same_as_server(tmp_path, dumps.as_vllm(ids, "0"))
    assert read_sequences(path)["0"].ids.tolist() == TOKENS


@pytest.mark.parametrize("padding", [0.0, -1.0])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_of_verl(padding: float, nested: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    right = 3
    values = torch.full((1, GENERATED + right), padding)
    values[0, :GENERATED] = -torch.arange(1, GENERATED + 1) / 4
    written = torch.zeros((1, GENERATED + right), dtype=torch.int64)
    written[0, :GENERATED] = 1
    written[0, 1] = 0  # what a tool answered
    path = tmp_path / "batch.pt"
    dumps.verl(path, routing(), nested=nested, rollout_log_probs=values.to(dtype))
    expected = [-(place + 1) / 4 for place in range(GENERATED)]
    assert read_log_probabilities(path)["0"].tolist() == expected
    dumps.verl(path, routing(), nested=nested, rollout_log_probs=values.to(dtype), response_mask=written)
    found = read_log_probabilities(path)["0"].tolist()
    assert found[0] == expected[0] and found[1] != found[1] and found[2:] == expected[2:]
    dumps.verl(path, routing(), nested=nested, rollout_log_probs=values[:, 1:])
    with pytest.raises(UserError, match="responses differ in tokens"):
        read_log_probabilities(path)
    dumps.verl(path, routing(), nested=nested)
    with pytest.raises(UserError, match="calculate_log_probs of verl"):
        read_log_probabilities(path)


def test_a_batch_without_its_mask_is_refused(tmp_path: Path) -> None:
    content = torch.load(dumps.verl(tmp_path / "batch.pt", routing()))
    del content["attention_mask"]
    torch.save(content, tmp_path / "batch.pt")
    assert "padding is zeros, which look like expert 0" in refusal(tmp_path, tmp_path / "batch.pt")


@pytest.mark.parametrize("start", [0, 3])
def test_the_recorder_of_sglang(start: int, tmp_path: Path) -> None:
    ids = routing()
    found = imported(tmp_path, dumps.recorder(tmp_path / "r.pt", ids, start=start))
    assert found.readers == ["sglang_recorder"] and (found.requests, found.tokens) == (3, ROWS)
    trace = TraceFile(tmp_path / "t.parquet")
    assert trace.ids == ["rank1/pass20/0", "rank1/pass20/1", "rank1/pass21"]
    parts = [ids[:5], ids[5:-2], ids[-2:]]
    for name, part, offset in zip(trace.ids, parts, (start, 0, 0), strict=True):
        for place, layer in enumerate(trace.layers):
            read = trace.read(layer, [name])
            np.testing.assert_array_equal(read.experts[0, offset:], np.sort(part[:, place]))
            assert not read.valid[0, :offset].any() and read.valid[0, offset:].all()
            assert read.generated is not None
            assert (read.generated[0] == (1 if name.endswith("21") else 0)).all()


def routers(path: Path, router: dict[str, Any]) -> None:
    """Write what all routers of a trace are, another one of the multi-token prediction, and one of no name."""
    state = {("decoder", None, layer): router for layer in dumps.SHAPE}
    other = {("mtp", 0, 0): {"score_function": "sigmoid"}, (): {}}
    torch.save(state | other, path.parent / "router_state_rank0.pt")


def test_logits_of_megatron_are_gates_and_an_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    steps = [rng.normal(size=(tokens, 4, 8)).astype(np.float32) for tokens in (9, 5)]
    path = dumps.megatron(tmp_path / "trace", steps)
    routers(path, {"score_function": "softmax", "expert_bias": None})
    found = imported(tmp_path, path)
    assert found.readers == ["megatron"] and found.unordered == [] and found.missing == []
    assert (found.requests, found.tokens) == (2, 14)
    # The same as a log: gates, and so their order, are the softmax of the rounded logits.
    log = tmp_path / "log.jsonl"
    lines = []
    for step, values in enumerate(steps):
        for place, layer in enumerate(dumps.SHAPE):
            logits = dumps.bfloat16(values[:, place])
            gates = np.exp(logits - logits.max(-1, keepdims=True))
            gates /= gates.sum(-1, keepdims=True)
            lines.append(
                {"id": f"rank0/step{step}", "layer": f"layers.{layer}", "num_experts": 8, "all_gates": gates.tolist(),
                 "experts": np.argsort(-logits, kind="stable")[:, :2].tolist()}
            )  # fmt: skip
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    import_trace(log, tmp_path / "log.parquet", name="m")
    assert (tmp_path / "log.parquet").read_bytes() == (tmp_path / "t.parquet").read_bytes()


def test_a_trace_of_megatron_without_logits_is_sets(tmp_path: Path) -> None:
    steps = [np.random.default_rng(4).normal(size=(9, 4, 8)).astype(np.float32)]
    ids = np.argsort(-dumps.bfloat16(steps[0]), kind="stable", axis=-1)[..., :2]
    # Layers are numbered among all layers, or among those with experts.
    for layers in (dumps.SHAPE, (0, 1, 2, 3)):
        path = dumps.megatron(tmp_path / "trace", steps, logits=False, layers=layers)
        assert imported(tmp_path, path).unordered == [f"layers.{layer}" for layer in dumps.SHAPE]
        same_as_server(tmp_path, dumps.as_vllm(ids, "rank0/step0", tokens=False))


def test_a_bias_of_the_choice_orders_by_scores(tmp_path: Path) -> None:
    values = np.random.default_rng(4).normal(size=(9, 4, 8)).astype(np.float32)
    path = dumps.megatron(tmp_path / "trace", [values])
    bias = np.zeros(8, np.float32)
    bias[5] = 2.0  # above any sigmoid: everybody chooses expert 5 first
    router = {"weight": torch.zeros(1), "expert_bias": torch.from_numpy(bias), "score_function": "sigmoid"}
    routers(path, router)
    found = imported(tmp_path, path)
    without = sum(
        (np.argsort(-dumps.bfloat16(values[:, place]))[:, :2] != 5).all(-1).sum() for place in range(4)
    )
    assert f"{without:,} choices of a token do not have the highest scores" in found.missing[0]
    read = TraceFile(tmp_path / "t.parquet").read("layers.2", ["rank0/step0"])
    assert (read.layer.ordered_by, read.layer.gates_sum_to_one) == ("scores", False)
    chose = (read.experts[0] == 5).any(-1)
    assert (read.experts[0, chose, 0] == 5).all() and chose.any()
    assert read.all_gates is not None
    np.testing.assert_allclose(read.all_gates[0], 1 / (1 + np.exp(-dumps.bfloat16(values[:, 1]))), rtol=1e-6)


def test_micro_batches_of_a_step_are_inputs_of_their_own(tmp_path: Path) -> None:
    values = np.random.default_rng(4).normal(size=(9, 4, 8)).astype(np.float32)
    path = dumps.megatron(tmp_path / "trace", [values], logits=False)
    path.write_text(path.read_text() * 2)
    imported(tmp_path, path)
    assert TraceFile(tmp_path / "t.parquet").ids == ["rank0/step0", "rank0/step0/1"]


def test_traces_of_moe_atlas_have_gates(tmp_path: Path) -> None:
    ids = routing()
    gates = np.random.default_rng(5).random(ids.shape).astype(np.float32).astype(float)
    path, _ = serving.write(tmp_path, {"id": "a"} | dumps.atlas(ids, gates))
    found = imported(tmp_path, path)
    assert found.readers == ["atlas"] and found.unordered == []
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(
            json.dumps(
                {"id": "a", "layer": f"layers.{layer}", "num_experts": 8, "experts": ids[:, place].tolist(),
                 "gates": gates[:, place].tolist(), "generated": [False] * ROWS, "token_ids": TOKENS[:ROWS]}
            ) + "\n"
            for place, layer in enumerate(dumps.SHAPE)
        )
    )  # fmt: skip
    import_trace(log, tmp_path / "log.parquet", name="m")
    assert (tmp_path / "log.parquet").read_bytes() == (tmp_path / "t.parquet").read_bytes()


ONE = {"model_id": "m", "num_layers": 4, "top_k": 2, "token_strs": ["a"]}


def activation(**more: Any) -> dict[str, Any]:
    return ONE | {"activations": [{"layer": 1, "token_idx": 0, "expert_idx": 0, "gate_weight": 0.5} | more]}


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (ONE | {"activations": 5}, "activations takes a list of objects"),
        (ONE | {"activations": [], "top_k": 3}, "num_experts_per_tok of the model is 2"),
        (activation(layer=0), "layer 0 has experts, and has none by the model's config.json"),
        (activation(layer=10**9), "layer 1000000000 has experts, and has none"),
        (activation(expert_idx=8), "expert_idx is 8, and there are 8 experts of the model"),
        (activation(token_idx=1), "token_idx is 1, and there are 1 tokens of the text"),
        (activation(token_idx=10**30), "token_idx takes numbers from 0 up"),
        (activation(gate_weight=float("nan")), "gate_weight takes numbers from 0 up"),
        (activation(expert_idx=None), "expert_idx takes numbers from 0 up"),
        (activation() | {"activations": activation()["activations"] * 3}, "more than 2 experts in a layer"),
        ({"outputs": [{"routed_experts": [[1]]}]}, "all of the same length"),
        ({"outputs": [{"routed_experts": "x"}]}, "all of the same length"),
    ],
)  # fmt: skip
def test_what_is_no_capture_is_named(response: Any, words: str, tmp_path: Path) -> None:
    path, _ = serving.write(tmp_path, response)
    assert words in refusal(tmp_path, path)


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def packed(content: Any) -> Any:
    return lambda path: torch.save(content, path)


def compressed(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({"a": bytes(2**20)}))


IDS = torch.zeros(1, 3, 5, 2, dtype=torch.int32)
HUGE = torch.zeros(1, dtype=torch.uint8).expand(1, 2**40, 5, 2)
MASK = torch.ones((1, 3), dtype=torch.int64)


def batch(ids: Any, mask: Any = MASK) -> Any:
    return packed({"routed_experts": ids, "attention_mask": mask})


def samples(**sample: Any) -> Any:
    return packed({"samples": [{"rollout_routed_experts": None} | sample]})


RECORDS = [{"topk_ids_of_layer": torch.zeros(5, 2, 8).int()}]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (packed({"samples": Harm()}), "which would have to be run"),
        (packed([1]), "holds no dictionary with names as keys"),
        (packed({"a": 1}), "no reader knows where this response keeps routed experts (its keys: 'a')"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)), "is damaged"),
        (compressed, "is compressed"),
        (batch(HUGE), "routed_experts is no plain tensor"),
        (batch(IDS.repeat(1, 2, 1, 1)), "1 × 6 tokens, and attention_mask of 1 × 3"),
        (batch(IDS.float()), "routed_experts takes whole numbers in 4 axes"),
        (batch(IDS, 7 * MASK), "attention_mask takes 0 and 1"),
        (
            samples(rollout_routed_experts=np.array([[{}]], dtype=object)),
            "than containers, tensors and arrays",
        ),
        (samples(rollout_routed_experts="x"), "takes whole numbers in 3 axes"),
        (samples(tokens=[1], response_length=5), "response_length takes"),
        (samples(tokens=["x"]), "tokens takes a list of token ids"),
        (packed({"records": RECORDS}), "last_physical_to_logical_map is missing"),
    ],
)
def test_hostile_files_of_torch_are_a_sentence(
    write: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "dump.pt")
    said = refusal(tmp_path, tmp_path / "dump.pt")
    assert words in said and str(tmp_path / "dump.pt") in said
    assert not (tmp_path / "harmed").exists()


def recorded(change: dict[str, Any]) -> Any:
    def write(path: Path) -> None:
        content = torch.load(dumps.recorder(path, routing()))
        content["records"][0] |= change
        torch.save(content, path)

    return write


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"topk_ids_of_layer": torch.full((5, 11, 2), 90)},
            "holds expert 90, and last_physical_to_logical_map has 12",
        ),
        ({"topk_ids_of_layer": torch.zeros(5, 11, 8).int()}, "has not 2 experts per token"),
        (
            {"topk_ids_of_layer": torch.zeros(4, 11, 2).int()},
            "has 4 layers, and last_physical_to_logical_map 5",
        ),
        ({"extend_seq_lens": [3]}, "other numbers of them"),
        ({"positions": "x"}, "positions takes a list of token ids"),
        ({"positions": [2**29] * 11}, "which is more than any prompt has"),
    ],
)
def test_odd_records_of_sglang_are_a_sentence(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    recorded(change)(tmp_path / "r.pt")
    assert words in refusal(tmp_path, tmp_path / "r.pt")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": -1}, "line 1: step takes a whole number from 0 up; got -1"),
        ({"top_indices": [[1], [2, 3]]}, "top_indices takes for each of num_tokens tokens"),
        ({"num_tokens": 3}, "top_indices takes for each of num_tokens tokens"),
        ({"logit_offset": 10**12}, "ends before the logits at 1,000,000,000,000"),
        ({"logit_shape": [9, 9]}, "do not fit 9 tokens and 8 experts"),
        ({"layer": 9}, "it has layers 2, 3, 4, 9, and the model has experts in 1, 2, 3, 4"),
    ],
)
def test_odd_lines_of_megatron_are_a_sentence(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    values = np.random.default_rng(4).normal(size=(9, 4, 8)).astype(np.float32)
    path = dumps.megatron(tmp_path / "trace", [values])
    routers(path, {"score_function": "softmax"})
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *rest]) + "\n")
    said = refusal(tmp_path, path)
    assert words in said


def test_files_beside_a_trace_of_megatron(tmp_path: Path) -> None:
    values = np.random.default_rng(4).normal(size=(9, 4, 8)).astype(np.float32)
    path = dumps.megatron(tmp_path / "trace", [values])
    state = path.parent / "router_state_rank0.pt"
    torch.save({("decoder", None, 1): {"score_function": Harm()}}, state)
    assert "which would have to be run" in refusal(tmp_path, path)
    routers(path, {"score_function": "softmax"})
    (path.parent / "logits_rank0.bin").unlink()
    assert "logits_rank0.bin, which is not beside it" in refusal(tmp_path, path)
    # One file with logits, and one without them.
    (tmp_path / "more").mkdir()
    dumps.megatron(path.parent, [values])
    other = dumps.megatron(tmp_path / "more", [values], logits=False)
    other.write_text(other.read_text().replace('"rank": 0', '"rank": 1'))
    assert "it has other weights than the requests before" in refusal(tmp_path, [path, other])


def test_padding_is_no_choice(tmp_path: Path) -> None:
    """Rows of a verl batch whose padding was routed as expert 0 do not reach the trace."""
    ids = routing()
    imported(tmp_path, dumps.verl(tmp_path / "b.pt", ids, left=5, right=7))
    read = TraceFile(tmp_path / "t.parquet").read("layers.1", ["0"])
    assert read.experts.shape[1] == ROWS and read.valid.all()
    np.testing.assert_array_equal(read.experts[0], np.sort(with_dense(ids)[:, 1]))
