"""Responses of servers: the same routing is the same trace whatever the encoding; what is missing is no token."""

import base64
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.recordings import responses
from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
from moeprobe.recordings.model_config import read_moe_shape
from moeprobe.recordings.reading import Block, TraceFile
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.serving import ENCODINGS, PROMPT, ROWS, routing, with_dense


def imported(folder: Path, *lines: Any, config: dict[str, Any] | None = None, **more: Any) -> ImportedExperts:
    path, model = serving.write(folder, *lines, config=config)
    return import_routed_experts(
        path, folder / "t.parquet", model_config=model, overwrite=True, name="served", **more
    )


def block(folder: Path, layer: str, name: str = "r") -> Block:
    return TraceFile(folder / "t.parquet").read(layer, [name])


def refusal(folder: Path, *lines: Any, config: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(UserError) as error:
        imported(folder, *lines, config=config, **more)
    sentence = str(error.value)
    assert sentence.endswith(".") and "\n" not in sentence and sentence.isprintable(), sentence
    assert not (folder / "t.parquet").exists()
    return sentence


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_of_one_routing_is_one_trace(encoding: str, tmp_path: Path) -> None:
    ids = routing()
    response = ENCODINGS[encoding](ids)
    found = imported(tmp_path, response)
    assert found.readers == [encoding.split(maxsplit=1)[0]]
    assert (found.requests, found.tokens, found.missing, found.findings, found.left_out) == (
        1,
        ROWS,
        [],
        [],
        [],
    )
    assert found.layers == found.unordered == ["layers.1", "layers.2", "layers.3", "layers.4"]
    for place, layer in enumerate(found.layers):
        read = block(tmp_path, layer)
        np.testing.assert_array_equal(read.experts[0], np.sort(ids[:, place]))
        assert read.valid.all() and read.processed.all() and read.gates is None
        assert (read.layer.num_experts, read.layer.top_k, read.layer.gates_kept) == (8, 2, "none")
    trace = (tmp_path / "t.parquet").read_bytes()
    imported(tmp_path, serving.like(response, ids))
    assert (tmp_path / "t.parquet").read_bytes() == trace
    # In one document, over several lines; and by the name of the reader.
    document = tmp_path / "one.json"
    document.write_text(json.dumps([response], indent=2))
    again = tmp_path / "again.parquet"
    config = tmp_path / "config.json"
    api.import_routed_experts(
        [document], again, model_config=config, name="served", reader=encoding.split(maxsplit=1)[0]
    )
    assert again.read_bytes() == trace


def test_the_order_of_a_tokens_experts_changes_no_number(tmp_path: Path) -> None:
    clean, other = routing(0, rows=60), routing(1, rows=60)
    other[20:] = clean[20:]
    scrambled = np.random.default_rng(2).permuted(other, axis=-1)
    assert (scrambled != other).any()
    said = []
    for name, ids in (("clean", clean), ("other", other), ("scrambled", scrambled)):
        path, model = serving.write(tmp_path, {"id": "r", "routed_experts": serving.nemo(ids)})
        folder = tmp_path / name
        result = run("trace", "import", path, folder / "t.parquet", "--model-config", model, "--name", "m")
        assert result.exit_code == 0, result.output
        assert "Servers do not say which of a token's experts came first" in result.output
        table = run(
            "trace", "analyze", tmp_path / "clean/t.parquet", folder / "t.parquet", "--json"
        ) if name != "clean" else None  # fmt: skip
        if table is not None:
            rows = json.loads(table.stdout)["table"]
            names = {row["metric"] for row in rows}
            assert "set_jaccard" in names and not names & {
                "top1_match",
                "expert_share_first",
                "load_entropy_first",
            }
            assert [row["value"] for row in rows if row["metric"] == "set_jaccard"] != [1.0] * 4
            said.append([{**row, "checkpoint": ""} for row in rows])
    assert json.dumps(said[0]) == json.dumps(said[1])
    assert len(said[0]) > 8


@pytest.mark.parametrize("sent", ["prefix", "start", "fill"])
def test_rows_that_were_not_captured_are_no_valid_tokens(sent: str, tmp_path: Path) -> None:
    ids = routing()
    if sent == "start":
        found = imported(tmp_path, serving.sglang(with_dense(ids), start=4))
        words = "4 tokens before the first requested row (start)"
    else:
        cached = ids.copy()
        cached[:4] = -1
        dtype = "uint8" if sent == "fill" else "int16"
        response = serving.vllm_lists(cached) if sent == "prefix" else serving.vllm(cached, dtype)
        found = imported(tmp_path, response)
        words = "4 tokens are -1 (or 255, the fill of uint8) in every layer"
    assert [one.startswith(words) for one in found.missing] == [True]
    assert found.tokens == ROWS - 4
    read = block(tmp_path, "layers.2")
    assert read.valid[0].tolist() == [False] * 4 + [True] * (ROWS - 4)
    assert (read.experts[0, :4] == -1).all()
    np.testing.assert_array_equal(read.experts[0, 4:], np.sort(ids[4:, 1]))


def test_rows_before_the_start_hinder_no_comparison(tmp_path: Path) -> None:
    """Two logs of one routing, the second without its first 4 rows: the other 9 tokens of each are compared."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, start in ((whole, 0), (cut, 4)):
        folder.mkdir()
        imported(folder, *(serving.sglang(with_dense(routing(seed)), start=start) | {"id": f"r{seed}"}
                           for seed in range(3)))  # fmt: skip
    table = api.analyze_trace([whole / "t.parquet", cut / "t.parquet"]).table
    match = table[(table["metric"] == "set_jaccard") & (table["layer"] == "layers.3")]
    match = match[match["tokens"] == "token"]
    assert match["value"].tolist() == [1.0] and match["trials"].tolist() == [3 * (ROWS - 4)]


def test_255_is_an_expert_of_256(tmp_path: Path) -> None:
    config = serving.DEEPSEEK | {"n_routed_experts": 256}
    ids = routing(experts=256)
    ids[0, 0] = [255, 3]
    ids[1] = 255
    found = imported(tmp_path, serving.vllm(ids), config=config)
    assert found.tokens == ROWS - 1
    read = block(tmp_path, "layers.1")
    assert read.experts[0, 0].tolist() == [3, 255] and not read.valid[0, 1]


def test_prompt_rows_that_are_null_begin_where_the_prompt_ends(tmp_path: Path) -> None:
    ids = routing()
    response = serving.vllm_lists(ids) | {"prompt_routed_experts": None}
    assert imported(tmp_path, response).tokens == ROWS - PROMPT
    np.testing.assert_array_equal(block(tmp_path, "layers.1").experts[0, PROMPT:], np.sort(ids[PROMPT:, 0]))
    del response["usage"]
    (tmp_path / "t.parquet").unlink()
    assert "nothing says where rows begin" in refusal(tmp_path, response)


def test_sequences_have_names(tmp_path: Path) -> None:
    several = serving.vllm(routing()) | {"id": "a"}
    several["choices"] = [
        several["choices"][0], {"routed_experts": None}, serving.vllm(routing(1))["choices"][0],
    ]  # fmt: skip
    bare = {"routed_experts": serving.nemo(routing(2, rows=3))}
    found = imported(
        tmp_path, several, "", bare, {"request_id": 17} | bare, serving.sglang(with_dense(routing()))
    )
    assert TraceFile(tmp_path / "t.parquet").ids == ["a/0", "a/2", "responses.jsonl:3", "17", "r"]
    assert found.readers == ["nemo", "sglang", "vllm"] and found.left_out == ["a/1"]
    assert found.missing == [
        "1 sequences have null for routed experts (aborted, or not captured) and are left out."
    ]
    assert TraceFile(tmp_path / "t.parquet").about["skipped"] == ["a/1"]
    (tmp_path / "t.parquet").unlink()
    assert "line 2: request 'r' was there before" in refusal(tmp_path, *[serving.vllm(routing())] * 2)


QWEN = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": 8,
        "num_experts_per_tok": 2}  # fmt: skip
SPARSE: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    (serving.DEEPSEEK, (1, 2, 3, 4)),
    (serving.DEEPSEEK | {"moe_layer_freq": 2}, (2, 4)),
    (serving.DEEPSEEK | {"moe_layer_freq": [0, 0, 1, 0, 1]}, (2, 4)),
    (QWEN, (1, 5)),
    (QWEN | {"mlp_layer_types": ["dense", *["sparse"] * 5]}, (1, 2, 3, 4, 5)),
    ({"text_config": QWEN | {"decoder_sparse_step": 1}}, (0, 1, 2, 4, 5)),
    ({"num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2}, (0, 1)),
]


@pytest.mark.parametrize(("config", "sparse"), SPARSE)
def test_the_configuration_says_which_layers_are_sparse(
    config: dict[str, Any], sparse: tuple[int, ...], tmp_path: Path
) -> None:
    layers = config.get("text_config", config)["num_hidden_layers"]
    ids = routing(layers=len(sparse))
    found = imported(tmp_path, {"id": "r", "routed_experts": serving.nemo(ids)}, config=config)
    assert found.layers == [f"layers.{number}" for number in sparse]
    trace = (tmp_path / "t.parquet").read_bytes()
    imported(tmp_path, serving.like({}, with_dense(ids, sparse, layers)), config=config)
    assert (tmp_path / "t.parquet").read_bytes() == trace


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "glm4_moe", "mixtral", "olmoe"])
def test_configurations_of_the_library(kind: str, tmp_path: Path) -> None:
    """Which layers have routers in a model that transformers builds of the same ``config.json``."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(
        kind, num_hidden_layers=6, hidden_size=8, intermediate_size=8, num_attention_heads=2, vocab_size=8,
        num_key_value_heads=2, **({"decoder_sparse_step": 2, "mlp_only_layers": [3]} if "qwen" in kind else {}),
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected = {
        int(name.split(".")[2])
        for name, _ in model.named_modules()
        if name.endswith((".mlp.experts", "moe.experts"))
    }
    shape = read_moe_shape(tmp_path / "config.json")
    assert expected == set(shape.sparse) and expected
    assert shape.num_experts == (getattr(config, "n_routed_experts", None) or config.num_experts)
    assert shape.top_k == config.num_experts_per_tok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_routed_experts": None}, "says nothing of the number of experts"),
        ({"num_experts": 16}, "contradicts itself in the number of experts"),
        ({"num_experts_per_tok": None}, "lacks num_experts_per_tok"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok takes a whole number from 1 to 8; got 9"),
        ({"num_hidden_layers": True}, "num_hidden_layers takes a whole number from 1 to 10,000; got True"),
        ({"first_k_dense_replace": 5}, "none of the 5 layers has experts"),
        ({"interleave_moe_layer_step": 2}, "is said by interleave_moe_layer_step, which is not known here"),
        ({"mlp_layer_types": ["sparse"]}, "for each of 5 layers"),
        ({"mlp_only_layers": [7]}, "mlp_only_layers takes numbers of layers from 0 to 4"),
        ({"moe_layer_freq": [1]}, "moe_layer_freq takes a number, or 0 or 1 for each of 5 layers"),
    ],
)
def test_configurations_that_do_not_say_enough(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, serving.vllm(routing()), config=serving.DEEPSEEK | change)


HUGE = {"data": "AAAA", "shape": [2**30, 4, 2], "dtype": "int32"}
NPY = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|u1', 'fortran_order': False, 'shape': (1073741824, 4, 2), }"
PICKLED = np.array([[[{}]]], dtype=object)


def npy_file(content: bytes) -> str:
    return base64.b64encode(content.ljust(127) + b"\n").decode()


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("{", "this is not JSON"),
        ("data: {}", "this is not JSON (Expecting value: line 1 column 1 (char 0)); it is an event stream"),
        ("[" * 100_000, "nested too deeply"),
        ("3", "expected a response, a JSON object"),
        ({"error": "x"}, "no reader knows where this response keeps routed experts (its keys: 'error')"),
        ({"choices": [{"routed_experts": "AAAA"}]}, "its 3 bytes are no whole rows of the model"),
        ({"choices": [{"routed_experts": npy_file(NPY)}]}, "holds 0 bytes, which are not 1,073,741,824 × 4 × 2"),
        ({"choices": [{"routed_experts": "k05VTVBZ"}]}, "is not base64 of an .npy file"),
        ({"choices": [{"routed_experts": npy_file(NPY[:10] + b"(")}]}, "is not base64 of an .npy file"),
        ({"choices": [{"routed_experts": npy_file(NPY[:10] + b"{'descr': (), 'fortran_order': 0, 'shape': ()}")}]},
         "is not base64 of an .npy file"),
        ({"choices": [{"routed_experts": "k05VTVBZ!"}]}, "routed_experts is not base64"),
        ({"choices": [{"routed_experts": serving.npy(np.zeros((3, 4, 2), "f4"))}]}, "expected whole numbers"),
        ({"choices": [{"routed_experts": serving.npy(np.zeros((3, 8), "u1"))}]}, "is an .npy file of shape (3, 8)"),
        ({"choices": [{"routed_experts": serving.npy(PICKLED)}]}, "is an .npy file of object"),
        ({"choices": [{"routed_experts": [[[1, 2], [3]]]}]}, "all of the same length"),
        ({"choices": [{"routed_experts": [[[1.5, 2]]]}]}, "all of the same length"),
        ({"routed_experts": HUGE}, "holds 3 bytes, which are not 1,073,741,824 × 4 × 2 numbers of 4 bytes"),
        ({"routed_experts": HUGE | {"shape": [-1, 4, 2]}}, "shape takes tokens, layers and experts per token"),
        ({"routed_experts": HUGE | {"dtype": "object"}}, "its type is one of uint8"),
        ({"routed_experts": HUGE | {"dtype": []}}, "its type is one of uint8"),
        ({"routed_experts": HUGE | {"dtype": "x" * 10**6}}, "xxx…xxx"),
        ({"routed_experts": HUGE | {"data": 5}}, "data takes base64; got int"),
        ({"routed_experts": serving.shaped(routing()) | {"start": 10**12}}, "start takes a whole number"),
        ({"routed_experts": serving.shaped(routing()) | {"start": 2**30}}, "are more than the 268,435,456 numbers"),
        ({"routed_experts": "nrlre1:int64:1x4x2:AAAA"}, "of int8, int16 or int32"),
        ({"routed_experts": "nrlre1:int8:999999999x4x2:AAAA"}, "holds 3 bytes"),
        ({"meta_info": {"routed_experts": "AAAA"}}, "which are not ? × 5 × 2 numbers of 4 bytes"),
        ({"id": "\ud800", "routed_experts": serving.nemo(routing())}, "half a character"),
        (serving.vllm(routing(layers=3)), "there are 3 layers, and the model has 5 hidden layers, 4 of them"),
        (serving.vllm(routing(top_k=3)), "a token has 3 experts, and num_experts_per_tok of the model is 2"),
    ],
)  # fmt: skip
def test_what_is_no_capture_is_named_with_its_line(response: Any, words: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        said = refusal(tmp_path, serving.vllm(routing()) | {"id": "first"}, response)
        assert tracemalloc.get_traced_memory()[1] < 2**26, "what a shape claims was allocated"
    finally:
        tracemalloc.stop()
    assert f"{tmp_path / 'responses.jsonl'}, line 2: " in said and words in said


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("with_all_layers", [False, True])
def test_weights_of_total_router_recall_are_gates(with_all_layers: bool, start: int, tmp_path: Path) -> None:
    ids = routing(rows=ROWS, top_k=2)
    weights = np.random.default_rng(3).random(ids.shape).astype(np.float32)
    weights /= weights.sum(-1, keepdims=True)
    sent = (with_dense(ids), with_zeros(weights)) if with_all_layers else (ids, weights)
    found = imported(tmp_path, {"id": "r", "routed_experts": serving.recalled(*sent, start)})
    assert found.readers == ["dynamo"] and found.unordered == []
    for place in range(4):
        row = block(tmp_path, f"layers.{place + 1}")
        order = np.argsort(-weights[start:, place], axis=-1)
        assert row.gates is not None and row.layer.ordered_by == "gates"
        np.testing.assert_array_equal(
            row.experts[0, start:], np.take_along_axis(ids[start:, place], order, -1)
        )
        np.testing.assert_array_equal(
            row.gates[0, start:], np.take_along_axis(weights[start:, place], order, -1)
        )
        assert (row.experts[0, :start] == -1).all()


def with_zeros(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights ``(T, L, K)`` behind those of a dense layer."""
    return np.concatenate([np.zeros_like(weights[:, :1]), weights], 1)


@pytest.mark.parametrize("odd", [np.nan, -0.5, np.inf])
def test_weights_that_no_router_has_are_refused(odd: float, tmp_path: Path) -> None:
    ids = routing()
    weights = np.full(ids.shape, 0.5, np.float32)
    weights[2, 1, 0] = odd
    said = refusal(tmp_path, {"id": "r", "routed_experts": serving.recalled(ids, weights)})
    assert "weights of experts, holds numbers that are below 0 or not finite" in said


def test_a_response_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MOST_BYTES", 100)
    assert "line 1: a response has more than 100 bytes; split it." in refusal(tmp_path, "x" * 1000)


def test_a_fifo_is_no_file_of_responses(tmp_path: Path) -> None:
    _, model = serving.write(tmp_path, "")
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "nosuch"):
        said = refused("trace", "import", tmp_path / name, tmp_path / "t.parquet", "--model-config", model)
        assert f"There is no file of responses {tmp_path / name}." in said


def test_a_reader_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPROBE_PLUGINS", "")
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import numpy as np\nfrom moeprobe.recordings.readers.base import Capture, Reader\n\n\n"
        'class Paged(Reader):\n    """Pages of rows."""\n\n'
        '    def reads(self, response):\n        return "pages" in response\n\n'
        "    def captures(self, response, shape):\n"
        '        return [Capture(np.concatenate([np.array(one) for one in response["pages"]]))]\n'
    )
    ids = routing()
    path, model = serving.write(tmp_path, {"id": "r", "pages": [ids[:5].tolist(), ids[5:].tolist()]})
    trace = tmp_path / "paged.parquet"
    result = run(
        "--plugins",
        plugin,
        "trace",
        "import",
        path,
        trace,
        "--model-config",
        model,
        "--name",
        "served",
    )
    assert result.exit_code == 0 and "read as paged." in result.output, result.output
    imported(tmp_path, serving.like({}, ids))
    assert trace.read_bytes() == (tmp_path / "t.parquet").read_bytes()


def test_the_command(tmp_path: Path) -> None:
    path, model = serving.write(tmp_path, serving.vllm(routing()))
    more = tmp_path / "more.json"
    more.write_text(
        json.dumps([serving.vllm(routing(1)) | {"id": "b"}, serving.vllm(routing(2)) | {"id": "c"}])
    )
    trace = tmp_path / "served.parquet"
    command = ("trace", "import", path, more, trace, "--model-config", model)
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "3 requests, 4 layers (layers.1 to layers.4): 39 tokens" in result.output
    assert "read as vllm." in result.output and f"Written: {trace}" in result.output
    with pytest.warns(RunWarning, match=r"served\.parquet is finished; add overwrite=True to repeat it"):
        again = run(*command)
    assert again.exit_code == 0 and again.stdout == result.stdout
    assert "exists; add --overwrite" in refused(*command, "--name", "other")
    said = json.loads(run(*command, "--overwrite", "--json").stdout)
    assert (said["requests"], said["tokens"], said["file"]) == (3, 39, str(trace))
    assert "There is no reader 'vlm'. Did you mean 'vllm'?" in refused(
        *command, "--overwrite", "--reader", "vlm"
    )
    wrong = refused(*command, "--overwrite", "--reader", "nemo")
    assert f"{path}, line 1: routed_experts takes nrlre1:TYPE" in wrong
