"""Logs of servers: what a line says arrives in the trace; a line that says nothing sensible is named by its number."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.recordings import import_log as trace_log
from moeprobe.recordings import responses
from moeprobe.recordings.import_log import import_trace
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_routing

LINE: dict[str, Any] = {
    "id": "req-17",
    "layer": "blocks.3",
    "num_experts": 8,
    "experts": [[3, 5], [0, 1], [6, -1]],
    "gates": [[0.6, 0.3], [0.5, 0.4], [0.9, 0]],
}


def log(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "routing.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def imported(folder: Path, *lines: dict[str, Any] | str, **more: Any) -> TraceFile:
    path = folder / "t.parquet"
    import_trace(log(folder, *lines), path, overwrite=True, **more)
    return TraceFile(path)


def test_a_line_arrives(tmp_path: Path) -> None:
    trace = imported(tmp_path, LINE)
    found = to_routing(trace.read("blocks.3", ["req-17"]))
    assert found.selected.tolist() == [LINE["experts"]]
    assert found.processed.tolist() == [[[True, True], [True, True], [True, False]]]
    expected = torch.zeros(1, 3, 8)
    expected[0, 0, 3], expected[0, 0, 5], expected[0, 1, 0], expected[0, 1, 1], expected[0, 2, 6] = (
        0.6,
        0.3,
        0.5,
        0.4,
        0.9,
    )
    assert torch.equal(found.weights, expected)
    assert not found.gates_sum_to_one, "the other six gates are not known"
    assert (found.router, found.grid, found.num_prefix_tokens, found.token_local) == (
        "recorded",
        None,
        0,
        False,
    )
    assert trace.about["checkpoint"] == {"name": "t", "sha256": None}


def test_sequences_of_different_lengths_are_filled_up(tmp_path: Path) -> None:
    short = LINE | {"id": 18, "experts": [[7, 2]], "gates": [[0.5, 0.5]]}
    trace = imported(tmp_path, LINE, short)
    found = to_routing(trace.read("blocks.3", ["18", "req-17"]))
    assert found.valid.tolist() == [[True, False, False], [True, True, True]]
    # Equal weights: the lower expert first.
    assert found.selected[0].tolist() == [[2, 7], [-1, -1], [-1, -1]]


def test_weights_say_which_choice_is_best(tmp_path: Path) -> None:
    line = LINE | {
        "gates": [[0.1, 0.3], [0.5, 0.4], [0.9, 0]],
        "processed": [[True, False], [True, True], [True, False]],
    }
    found = to_routing(imported(tmp_path, line).read("blocks.3", ["req-17"]))
    assert found.selected[0, 0].tolist() == [5, 3]
    assert found.processed[0, 0].tolist() == [False, True]


def test_all_gates_are_a_distribution(tmp_path: Path) -> None:
    gates = np.random.default_rng(0).dirichlet(np.ones(8), 3)
    whole = {key: value for key, value in LINE.items() if key != "gates"} | {"all_gates": gates.tolist()}
    found = to_routing(imported(tmp_path, whole).read("blocks.3", ["req-17"]))
    assert found.gates_sum_to_one
    np.testing.assert_array_equal(found.gates[0], gates.astype(np.float32))


def test_experts_may_be_set_for_all_lines(tmp_path: Path) -> None:
    line = {key: value for key, value in LINE.items() if key not in ("num_experts", "gates")}
    assert imported(tmp_path, line, num_experts=64).layers["blocks.3"].num_experts == 64
    with pytest.raises(UserError, match="line 1: num_experts is missing; add it to each line, or set it"):
        imported(tmp_path, line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "this is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        (LINE | {"id": "\ud800"}, "id holds half a character"),
        (LINE | {"layer": "\ud800"}, "layer holds half a character"),
        (LINE | {"router": "\ud800"}, "router holds half a character"),
        (LINE | {"num_prefix_tokens": 40000}, "num_prefix_tokens is at most 32,767; got 40,000"),
        ("[]", "expected one object per line"),
        (LINE | {"id": None}, "id takes a name or a whole number; got None"),
        (LINE | {"layer": 3}, "layer takes a name; got 3"),
        (LINE | {"gate": []}, "There is no field 'gate'. Did you mean 'gates'?"),
        ({"id": "a", "layer": "b"}, "experts is missing"),
        (LINE | {"num_experts": 0}, "num_experts takes a whole number from 1 up; got 0"),
        (LINE | {"num_experts": True}, "num_experts takes a whole number from 1 up; got True"),
        (LINE | {"num_experts": 40000}, "num_experts is at most 32,767; got 40,000"),
        (LINE | {"num_experts": 6}, "token 2 has experts outside of -1 to 5"),
        (LINE | {"experts": [[3, 3]]}, "token 0 has one expert twice for a token"),
        (LINE | {"experts": [[-1, 3]]}, "token 0 has a choice after an absent one"),
        (LINE | {"experts": [[3, 5], [0]]}, "experts takes a list of experts for each token, all of the same length"),
        (LINE | {"experts": [[3.0, 5.5]]}, "experts takes a list of experts for each token"),
        (LINE | {"experts": []}, "experts takes a list of experts for each token"),
        (LINE | {"experts": [[10**30, 5]]}, "experts takes a list of experts for each token"),
        (LINE | {"num_experts": 1, "experts": [[0, -1]]}, "experts holds 1 tokens with 2 of 1 experts each"),
        (LINE | {"num_prefix_tokens": 3}, "expected more than the 3 prefix tokens"),
        (LINE | {"gates": [[0.6, 0.3]]}, "gates takes 3 × 2 numbers"),
        (LINE | {"gates": [[-1, 0.3], [0.5, 0.4], [0.9, 0]]}, "gates takes numbers from 0 up"),
        ('{"id": 1, "layer": "l", "num_experts": 2, "experts": [[0]], "gates": [[NaN]]}', "gates takes numbers from"),
        (LINE | {"all_gates": [[1]]}, "gates are among all_gates; give one of the two"),
        ({key: value for key, value in LINE.items() if key != "gates"} | {"all_gates": [[0.5] * 8] * 3}, "add up to 4"),
        (LINE | {"processed": [[1, 1]] * 3}, "processed takes 3 × 2 truth values"),
        (LINE | {"valid": [True]}, "valid takes 3 truth values"),
        (LINE | {"token_local": "yes"}, "token_local takes true or false; got 'yes'"),
        (LINE, "blocks.3 of req-17 was there before"),
        (LINE | {"id": "b", "num_experts": 16}, "num_experts of blocks.3 is 16, and was 8 in the lines before"),
        (LINE | {"id": "b", "experts": [[1]], "gates": [[1]]}, "top_k of blocks.3 is 1, and was 2"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        imported(tmp_path, LINE, "", line)
    assert f"{tmp_path / 'routing.jsonl'}, line 3: " in str(error.value)
    assert words in str(error.value)
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize("named", [{"name": "\ud800"}, {"data": "\udcff"}])
def test_names_that_cannot_be_written_are_refused(tmp_path: Path, named: dict[str, str]) -> None:
    with pytest.raises(UserError, match="calls things by names in UTF-8; got"):
        imported(tmp_path, LINE, **named)
    assert not (tmp_path / "t.parquet").exists()


def test_a_request_that_lacks_a_layer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of the 2 layers \(blocks.3, blocks.5\) of request b"):
        imported(tmp_path, LINE, LINE | {"layer": "blocks.5"}, LINE | {"id": "b"})
    with pytest.raises(UserError, match="is empty; give what the server answered"):
        imported(tmp_path)


def test_a_long_log_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "ROWS_AT_ONCE", 4)
    lines = [LINE | {"id": name, "layer": layer} for name in range(9) for layer in ("blocks.1", "blocks.3")]
    read: list[int] = []
    found = trace_log.Log(log(tmp_path, *lines), progress=read.append)
    assert [rows.num_rows for rows in found.batches()] == [4, 4, 4, 4, 2]
    assert sum(read) == (tmp_path / "routing.jsonl").stat().st_size
    assert (len(found.requests), list(found.layers), found.num_tokens) == (9, ["blocks.1", "blocks.3"], 54)


def test_layers_may_keep_different_things(tmp_path: Path) -> None:
    bare = {key: value for key, value in LINE.items() if key != "gates"} | {"layer": "blocks.5"}
    trace = imported(tmp_path, LINE, bare)
    assert [trace.layers[name].gates_kept for name in ("blocks.3", "blocks.5")] == ["chosen", "none"]
    assert not to_routing(trace.read("blocks.5", ["req-17"])).weights.any()
