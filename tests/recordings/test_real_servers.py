"""Files of real servers and trainers (see ``servers/README.md``), and what people do to them."""

import base64
import gzip
import json
import pickle
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe import api
from moeprobe.adapters.huggingface.heads import kind_of
from moeprobe.inputs.modality import TOKEN_KINDS
from moeprobe.recorded.mismatch import Mismatch
from moeprobe.recordings.event_stream import responses_of_events
from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
from moeprobe.recordings.log_probs import read_log_probabilities, read_sequences
from moeprobe.recordings.readers.base import npy
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused

HERE = Path(__file__).parent / "servers"
OLMOE, LAYERS, TOP_K = HERE / "olmoe.json", 4, 8
# Of the embedding of the first token that is no special one.
FIRST_WEIGHTS = [-0.063358, 0.026128, -0.050515]


def lines_of(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in gzip.decompress((HERE / f"{name}.jsonl.gz").read_bytes()).splitlines()
    ]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def unzipped(folder: Path, name: str) -> Path:
    return written(folder / f"{name}.jsonl", lines_of(name))


def imported(path: Path, **keywords: Any) -> tuple[ImportedExperts, TraceFile]:
    arguments: dict[str, Any] = {"model_config": OLMOE, "overwrite": True} | keywords
    summary = import_routed_experts(path, path.with_suffix(".parquet"), **arguments)
    return summary, TraceFile(summary.path)


def rows_of(choice: dict[str, Any]) -> np.ndarray:
    return npy(base64.b64decode(choice["routed_experts"]), "it", axes="tokens, layers and experts")


def test_placeholders_of_pictures_are_as_many_as_their_tokens(tmp_path: Path) -> None:
    path = unzipped(tmp_path, "pictures")
    summary, trace = imported(path, model_config=HERE / "qwen3-vl.json")
    assert not summary.missing and list(summary.kinds) == ["text", "image", "special", "before"]
    # Pictures of 2, 3 and 4 columns and 2 rows of tokens, between a beginning and an end; one word is before.
    for name, columns in zip(trace.ids, (2, 3, 4), strict=True):
        kinds = trace.read("layers.0", [name]).kinds
        assert kinds is not None
        named = [TOKEN_KINDS[kind] for kind in kinds[0]]
        assert named[: 2 + 2 * columns + 1] == ["before"] * 2 + ["image"] * 2 * columns + ["special"]


def test_rows_that_a_server_was_asked_to_leave_out_are_the_first(tmp_path: Path) -> None:
    path = unzipped(tmp_path, "start")
    summary, trace = imported(path)
    assert any(
        "3 sequences have fewer rows than tokens less one, and their last row" in said
        for said in summary.missing
    )
    for name, line in zip(trace.ids, lines_of("start"), strict=True):
        [choice] = line["choices"]
        block = trace.read("layers.0", [name])
        assert block.token_ids is not None
        assert not block.valid[0, :3].any() and block.valid[0, 3:].all()
        tokens = choice["prompt_token_ids"] + choice["token_ids"]
        assert block.token_ids[0].tolist() == tokens[:-1]
        np.testing.assert_array_equal(block.experts[0, 3:], np.sort(rows_of(choice)[:, 0]))
    # Said by hand it is the same; and what does not fit is refused.
    said, same = imported(path, start=3)
    assert len(said.missing) == 1 and "before the first requested row" in said.missing[0]
    np.testing.assert_array_equal(
        same.read("layers.3", same.ids).experts, trace.read("layers.3", trace.ids).experts
    )
    with pytest.raises(Exception, match=r"not all but the last from start=4 on"):
        imported(path, start=4)


def test_rows_that_are_missing_at_an_unknown_place_are_not_compared(tmp_path: Path) -> None:
    lines = lines_of("float32")
    for line in lines:
        choice = line["choices"][0]
        choice["routed_experts"] = rows_of(choice).tolist()[:-2]
    path = written(tmp_path / "lists.jsonl", lines)
    summary, trace = imported(path)
    assert "3 sequences have fewer rows" in summary.missing[0]
    assert trace.about["misplaced"] == 3
    whole = imported(unzipped(tmp_path, "float32"))[1]
    for order in ((trace.path, whole.path), (whole.path, trace.path)):
        said = refused("trace", "analyze", *map(str, order))
        assert "lack rows" in said and "--start" in said


def test_log_probabilities_of_an_echo_are_the_last(tmp_path: Path) -> None:
    path = unzipped(tmp_path, "echo")
    scores, sequences = read_log_probabilities(path), read_sequences(path)
    for line in lines_of("echo"):
        [choice] = line["choices"]
        values = choice["logprobs"]["token_logprobs"]
        assert values[0] is None and len(values) == len(sequences[line["id"]].ids)
        np.testing.assert_allclose(scores[line["id"]], values[-len(choice["token_ids"]) :])


def as_sglang(line: dict[str, Any]) -> dict[str, Any]:
    """The same request as SGLang 0.5.23 answers it, after its class ``SglExt`` and ``_build_chat_response``."""
    [choice] = line["choices"]
    routed = base64.b64encode(rows_of(choice).astype("<i4").tobytes()).decode()
    extension = {
        "routed_experts": routed,
        "input_ids": choice["prompt_token_ids"],
        "output_ids": [choice["token_ids"]],
        "cached_tokens_details": {"device": 0, "host": 0},
        "spec_tokens_details": [],
    }
    scores = [{"token": "…", "logprob": value} for value in choice["logprobs"]["token_logprobs"]]
    message = {"role": "assistant", "content": choice["text"]}
    plain = {"index": 0, "message": message, "logprobs": {"content": scores}, "finish_reason": "length"}
    return {"id": line["id"], "object": "chat.completion", "model": "olmoe", "choices": [plain],
            "usage": line["usage"], "sglext": extension}  # fmt: skip


def test_sglang_has_its_experts_beside_the_choices(tmp_path: Path) -> None:
    lines = [as_sglang(line) for line in lines_of("float32")]
    path = written(tmp_path / "sglang.jsonl", lines)
    summary, trace = imported(path)
    assert summary.readers == ["sglang"] and summary.requests == 3 and summary.missing == []
    _, vllm = imported(unzipped(tmp_path, "float32"))
    for layer in trace.layers:
        np.testing.assert_array_equal(
            trace.read(layer, trace.ids).experts, vllm.read(layer, vllm.ids).experts
        )
        np.testing.assert_array_equal(
            trace.read(layer, trace.ids).token_ids, vllm.read(layer, vllm.ids).token_ids
        )
    assert {name: len(values) for name, values in read_log_probabilities(path).items()} == dict.fromkeys(
        trace.ids, 16
    )
    # With several choices there are experts of the first, and ids of each.
    lines[0]["choices"].append(lines[0]["choices"][0] | {"index": 1})
    lines[0]["sglext"]["output_ids"].append([7, 8, 9])
    summary, trace = imported(written(path, lines))
    assert summary.left_out == [f"{lines[0]['id']}/1"]
    first, second = (read_sequences(path)[f"{lines[0]['id']}/{number}"] for number in range(2))
    assert first.ids[: first.prompt].tolist() == second.ids[: second.prompt].tolist()
    assert second.ids[second.prompt :].tolist() == [7, 8, 9]
    # A list too few belongs to no choice.
    lines[0]["sglext"]["output_ids"].pop()
    with pytest.raises(Exception, match="output_ids of sglext takes a list of ids for each of the 2 choices"):
        imported(written(path, lines))


def test_a_router_trace_of_megatron_with_its_state(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "megatron", tmp_path / "megatron")
    path, config = folder / "router_trace_rank0.jsonl", folder / "config.json"
    summary, trace = imported(path, model_config=config)
    assert (
        summary.missing == [] and summary.unordered == [] and list(trace.layers) == ["layers.1", "layers.2"]
    )
    assert trace.layers["layers.1"].gates_kept == "all" and trace.layers["layers.1"].gates_sum_to_one
    # What is not said is not guessed: there are no gates of an unknown function.
    state = folder / "router_state_rank0.pt"
    content = state.read_bytes()
    state.unlink()
    summary, trace = imported(path, model_config=config)
    assert (
        "3 inputs have logits whose score function is not known, so they get no gates" in summary.missing[0]
    )
    assert trace.layers["layers.1"].gates_kept == "none" and summary.unordered == ["layers.1", "layers.2"]
    # A sigmoid keeps the order of the logits, and has other gates.
    state.write_bytes(content)
    routers = torch.load(state, weights_only=True)
    torch.save({key: router | {"score_function": "sigmoid"} for key, router in routers.items()}, state)
    summary, trace = imported(path, model_config=config)
    assert summary.missing == [] and not trace.layers["layers.1"].gates_sum_to_one


def test_the_last_event_of_a_stream_has_the_experts(tmp_path: Path) -> None:
    whole = unzipped(tmp_path, "generate")
    events = []
    for line in lines_of("generate"):
        [choice] = line["choices"]
        for number, token in enumerate(choice["token_ids"]):
            last = number == len(choice["token_ids"]) - 1
            part = {
                "index": 0, "token_ids": [token], "logprobs": {"content": [choice["logprobs"]["content"][number]]},
                "routed_experts": choice["routed_experts"] if last else None,
            }  # fmt: skip
            sent = {
                "request_id": line["request_id"],
                "choices": [part],
                "usage": line["usage"] if last else None,
            }
            events.append(f"data: {json.dumps(sent)}\n\n")
        events.append("data: [DONE]\n\n")
    path = tmp_path / "stream.txt"
    path.write_text("".join(events))
    (summary, trace), (_, other) = imported(path), imported(whole)
    assert summary.requests == 2 and summary.readers == ["vllm"]
    np.testing.assert_array_equal(
        trace.read("layers.2", trace.ids).experts, other.read("layers.2", other.ids).experts
    )
    # Streams of other paths have none.
    with pytest.raises(Exception, match=r"event stream without routed experts.* ask without stream"):
        imported(HERE / "chat-stream.txt")
    path.write_text("".join(events)[:-300])
    with pytest.raises(Exception, match=r"it was cut off|without routed experts"):
        imported(path)


@pytest.mark.parametrize("choices", [1, 20_000])
def test_a_long_stream_takes_time_in_proportion(choices: int) -> None:
    """Each event was joined to a copy of all before it: 20,000 choices took 28 seconds."""
    events = [
        {"id": "a", "choices": [{"index": number % choices, "token_ids": [number], "routed_experts": None}]}
        for number in range(40_000)
    ]
    content = "\n".join(f"data: {json.dumps(event)}" for event in events).encode()
    before = time.process_time()
    [response] = responses_of_events(content)
    assert time.process_time() - before < 4
    tokens = [choice["token_ids"] for choice in response["choices"]]
    assert tokens == [list(range(index, 40_000, choices)) for index in range(choices)]


def test_pickles_are_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(pickle.dumps({"batch": 1}))
    with pytest.raises(Exception, match=r"is a pickle.*DataProto\.load_from_disk.*torch\.save\(dict"):
        imported(path)


def test_nested_tensors_of_verl_are_sequences_without_padding(tmp_path: Path) -> None:
    lines = lines_of("float32")
    choices = [line["choices"][0] for line in lines]
    # The newer trainer has a row of zeros for the last token.
    rows = [np.concatenate([rows_of(choice), np.zeros((1, LAYERS, TOP_K), np.uint8)]) for choice in choices]

    def nested(parts: list[Any], kind: torch.dtype) -> torch.Tensor:
        return torch.nested.as_nested_tensor(
            [torch.as_tensor(part, dtype=kind) for part in parts], layout=torch.jagged
        )

    path = tmp_path / "nested.pt"
    torch.save(
        {
            "routed_experts": nested(rows, torch.int16),
            "prompts": nested([choice["prompt_token_ids"] for choice in choices], torch.int64),
            "responses": nested([choice["token_ids"] for choice in choices], torch.int64),
            "rollout_log_probs": nested(
                [choice["logprobs"]["token_logprobs"] for choice in choices], torch.float32
            ),
        },
        path,
    )
    summary, trace = imported(path)
    assert summary.readers == ["verl"] and trace.ids == ["0", "1", "2"]
    for name, choice, scores in zip(trace.ids, choices, read_log_probabilities(path).values(), strict=True):
        block = trace.read("layers.1", [name])
        present = block.valid[0]
        np.testing.assert_array_equal(block.experts[0, present], np.sort(rows_of(choice)[:, 1]))
        np.testing.assert_allclose(scores, choice["logprobs"]["token_logprobs"])


def test_outputs_of_the_class_llm(tmp_path: Path) -> None:
    summary, trace = imported(unzipped(tmp_path, "offline"), model_config=HERE / "mixtral.json")
    assert summary.readers == ["tensorrt_llm"] and summary.missing == [] and len(trace.layers) == 2
    first = lines_of("offline")[0]
    expected = np.sort(np.array(first["outputs"][0]["routed_experts"])[:, 0])
    np.testing.assert_array_equal(trace.read("layers.0", [trace.ids[0]]).experts[0], expected)


def test_choices_of_one_prompt_are_a_cluster(tmp_path: Path) -> None:
    path = unzipped(tmp_path, "list-n2")
    summary, trace = imported(path)
    name = lines_of("list-n2")[0]["id"]
    # Three prompts with two choices each.
    clusters = {f"{name}/{odd}": f"{name}/{odd - 1}" for odd in (1, 3, 5)}
    assert trace.about["clusters"] == clusters and (summary.requests, summary.dependent) == (6, 3)
    # Sent as requests by themselves they are clusters where it is said.
    lines = [
        {"id": f"r{number}", "choices": [choice | {"index": 0}]}
        for number, choice in enumerate(lines_of("list-n2")[0]["choices"])
    ]
    path = written(tmp_path / "groups.jsonl", lines)
    assert "clusters" not in imported(path)[1].about
    grouped = imported(path, cluster="prompt")[1].about["clusters"]
    assert grouped == {"r1": "r0", "r3": "r2", "r5": "r4"}
    del lines[0]["choices"][0]["prompt_token_ids"]
    with pytest.raises(Exception, match=r"r0 has no token ids, so its prompt is not known"):
        imported(written(path, lines), cluster="prompt")
    with pytest.raises(Exception, match=r"one of request, prompt; got 'text'"):
        imported(path, cluster="text")


@pytest.mark.slow
def test_choices_add_no_samples(tmp_path: Path) -> None:
    """Each request answered twice with the same text: the values and intervals are those of the single choices."""
    lines, other = lines_of("bfloat16"), []
    for line in lines:
        # Another server, which differs at a few tokens.
        experts = rows_of(line["choices"][0]).copy()
        experts[:: 3 + len(experts) % 5, 1] = (experts[:: 3 + len(experts) % 5, 1] + 1) % 64
        choice = line["choices"][0] | {"routed_experts": experts.tolist()}
        other.append(line | {"choices": [choice]})

    def table(number: int) -> pd.DataFrame:
        files = []
        for name, side in (("first", lines), ("second", other)):
            repeated = [
                line | {"choices": [line["choices"][0] | {"index": index} for index in range(number)]}
                for line in side
            ]
            imported(written(tmp_path / f"{name}.jsonl", repeated))
            files.append(tmp_path / f"{name}.parquet")
        return api.analyze_trace(files).table

    once, twice = table(1), table(2)
    keys = ["checkpoint", "layer", "tokens", "metric", "null", "expert"]
    both = once.merge(twice, on=keys, suffixes=("", "_twice"))
    assert len(both) == len(once) == len(twice) and (both["images_twice"] == both["images"]).all()
    # Chance levels of sets are drawn.
    exact = both[both["null"].isna() | (both["null"] == "")]
    assert set(exact["metric"]) > {"pairs_differ", "choice_differs", "set_jaccard"}
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(exact[f"{column}_twice"], exact[column], atol=1e-9, err_msg=column)
    # A choice is another token of its request, but none of another request.
    chance = both.drop(exact.index)
    assert (chance["trials_twice"] == 2 * chance["trials"]).all()
    np.testing.assert_allclose(chance["value_twice"], chance["value"], atol=0.05)


@pytest.fixture(scope="module")
def olmoe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the servers had: its weights follow from a seed."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(OLMOE)
    torch.manual_seed(540)
    model = kind_of(transformers, config).from_config(config).float().eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith("gate.weight"):
                weights.normal_(0, 0.5)
    # Another release of the library may draw other numbers.
    first = model.get_input_embeddings().weight[3, :3].tolist()
    if first != pytest.approx(FIRST_WEIGHTS, abs=1e-6):
        pytest.skip(f"this release of transformers draws other weights: {first}")
    folder = tmp_path_factory.mktemp("model") / "olmoe"
    model.save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("default::moeprobe.errors.RunWarning")
def test_a_real_server_agrees_with_the_model(olmoe: Path, tmp_path: Path) -> None:
    """In float32 in every pair of token and layer, and log-probabilities differ by rounding alone."""
    path = unzipped(tmp_path, "float32")
    _, trace = imported(path)
    # The folder has no tokenizer, and none is needed.
    [recorded] = api.record(f"hf:{olmoe}", tokens=path, out=tmp_path / "again").files
    table = api.analyze_trace([trace.path, recorded]).table
    [differ] = table[(table["metric"] == "pairs_differ") & (table["tokens"] == "token")].to_dict("records")
    tokens = sum(len(rows_of(line["choices"][0])) for line in lines_of("float32"))
    assert (differ["value"], differ["trials"]) == (0, LAYERS * tokens)
    result = api.mismatch(f"hf:{olmoe}", tokens=path, routing=trace.path)
    rows = result.table.set_index("metric")
    assert 0 < rows.loc["mismatch", "value"] < 1e-5
    assert rows.loc["mismatch_routing_share", "flag"] == "no_mismatch"
    [sentence] = Mismatch.conclusions(result.table)
    assert "This is rounding, so no share of it is routing." in sentence
    # How much it is depends on the order in which a machine adds up.
    assert re.search(r"differ by \d\.\de-07 ", sentence), sentence
    # In bfloat16 it does not.
    path = unzipped(tmp_path, "bfloat16")
    imported(path)
    rows = api.mismatch(f"hf:{olmoe}", tokens=path, routing=path.with_suffix(".parquet")).table.set_index(
        "metric"
    )
    assert rows.loc["mismatch", "value"] == pytest.approx(0.0087, abs=1e-4)
