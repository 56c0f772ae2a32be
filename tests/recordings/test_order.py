"""What is known of the order of a token's experts: a set has no first choice, whatever order it came in."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.serving import PROMPT, ROWS, routing

OLD = Path(__file__).parent / "version_1"
# What the files of version 1 were made of: the second request's first layer.
EXPERTS = {"gates": [[2, 3], [1, 0], [3, 0], [1, 4]], "sets": [[0, 2], [2, 0], [4, 3], [3, 2]]}


def logged(folder: Path, name: str, ids: np.ndarray, **more: Any) -> Path:
    """A trace of a log of requests ``(R, T, L, K)``."""
    log, trace = folder / f"{name}.jsonl", folder / f"{name}.parquet"
    lines = [
        {
            "id": f"r{request}",
            "layer": f"layers.{layer}",
            "num_experts": 8,
            "experts": ids[request, :, layer].tolist(),
        }
        | {
            key: value[request, :, layer].tolist()
            for key, value in more.items()
            if isinstance(value, np.ndarray)
        }
        | {key: value for key, value in more.items() if not isinstance(value, np.ndarray)}
        for request, layer in itertools.product(range(len(ids)), range(ids.shape[2]))
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    api.import_trace(log, trace, name="served")
    return trace


def requests(seed: int) -> np.ndarray:
    return np.stack([routing(1000 * seed + number, layers=2) for number in range(12)])


def metrics(*traces: Path) -> pd.DataFrame:
    return api.analyze_trace(traces).table


@pytest.mark.parametrize("kept", ["gates", "sets"])
def test_version_1_is_read_as_what_it_was(kept: str) -> None:
    trace = TraceFile(OLD / f"{kept}.parquet")
    assert trace.about["version"] == 1
    layer = trace.layers["layers.1"]
    assert (layer.ordered, layer.ordered_by) == ((True, "gates") if kept == "gates" else (False, None))
    read = trace.read("layers.1", ["r1"])
    expected = EXPERTS[kept] if kept == "gates" else np.sort(EXPERTS[kept]).tolist()
    assert read.experts[0].tolist() == expected
    assert read.generated is None and read.token_ids is None
    names = set(metrics(trace.path)["metric"])
    assert "load_entropy" in names and ("load_entropy_first" in names) == (kept == "gates")


def test_a_scrambled_order_changes_no_number(tmp_path: Path) -> None:
    clean, other = requests(0), requests(1)
    other[:, 4:] = clean[:, 4:]
    scrambled = np.random.default_rng(2).permuted(other, axis=-1)
    assert (scrambled != other).mean() > 0.3
    first = logged(tmp_path, "clean", clean)
    one, two = logged(tmp_path, "other", other), logged(tmp_path, "scrambled", scrambled)
    assert one.read_bytes() == two.read_bytes()
    table = metrics(first, one)
    names = set(table["metric"])
    assert {
        "set_jaccard",
        "top2_set_match",
        "expert_share",
        "load_entropy",
        "dead_experts",
    } <= names
    assert not names & {
        "top1_match",
        "top2_match",
        "expert_share_first",
        "load_entropy_first",
        "dead_experts_first",
    }
    # By hand: the share of tokens with the same set, and how often expert 3 is among the choices of the other.
    same = (np.sort(clean[:, :, 1]) == np.sort(other[:, :, 1])).all(-1).mean()
    of_layer = table[(table["layer"] == "layers.1") & (table["checkpoint"].str.contains("other"))]
    assert of_layer.set_index("metric")["value"]["top2_set_match"] == pytest.approx(same)
    share = of_layer[(of_layer["metric"] == "expert_share") & (of_layer["expert"] == 3)]["value"].item()
    assert share == pytest.approx((other[:, :, 1] == 3).mean())
    load = np.bincount(other[:, :, 1].ravel(), minlength=8) / other[:, :, 1].size
    # That of the table is corrected for few requests.
    entropy = of_layer.set_index("metric")["value"]["load_entropy"]
    assert entropy == pytest.approx(-(load * np.log(load)).sum() / np.log(8), abs=0.005)


def test_sets_that_another_program_wrote_in_any_order(tmp_path: Path) -> None:
    """Reading makes sets of them, so that a file of version 2 with a scrambled order is the same too."""
    import pyarrow.parquet as pq

    from tests.recordings.test_format import altered

    ids = requests(0)
    one, two = logged(tmp_path, "one", ids), logged(tmp_path, "two", ids)
    altered(two, lambda rows: [row | {"experts": np.reshape(row["experts"], (-1, 2))[:, ::-1].ravel().tolist()}
                               for row in rows])  # fmt: skip
    columns = [pq.read_table(path)["experts"] for path in (one, two)]
    assert columns[0] != columns[1]
    blocks = [TraceFile(path).read("layers.1", ["r3", "r5"]) for path in (one, two)]
    np.testing.assert_array_equal(blocks[0].experts, blocks[1].experts)


def test_who_says_that_ids_are_ordered_says_by_what(tmp_path: Path) -> None:
    clean, other = requests(0), requests(1)
    other[:, 4:] = clean[:, 4:]
    paths = [logged(tmp_path, name, ids, ordered_by="logits") for name, ids in (("a", clean), ("b", other))]
    table = metrics(*paths)
    found = table[(table["layer"] == "layers.1") & (table["metric"] == "top1_match")]["value"].item()
    assert found == pytest.approx((clean[:, :, 1, 0] == other[:, :, 1, 0]).mean())
    assert "load_entropy_first" in set(table["metric"])
    biased = logged(tmp_path, "c", other, ordered_by="scores")
    result = api.analyze_trace([paths[0], biased])
    assert not {"top1_match", "top2_match"} & set(result.table["metric"])
    assert any("order them by different things" in note for note in result.sidecar["notes"])
    with pytest.raises(UserError, match="ordered_by is one of gates, logits, scores; got 'luck'"):
        logged(tmp_path, "d", other, ordered_by="luck")


def test_scores_and_gates_may_order_differently(tmp_path: Path) -> None:
    """With a bias the best by score may have the smaller gate: the given order is kept, the gates go along."""
    ids = requests(0)
    gates = np.random.default_rng(0).random(ids.shape)
    read = TraceFile(logged(tmp_path, "a", ids, gates=gates, ordered_by="scores")).read("layers.0", ["r7"])
    np.testing.assert_array_equal(read.experts[0], ids[7, :, 0])
    assert read.gates is not None
    np.testing.assert_array_equal(read.gates[0], gates[7, :, 0].astype(np.float32))


def test_a_server_may_be_known_to_order(tmp_path: Path) -> None:
    ids = routing()
    path, model = serving.write(tmp_path, serving.vllm(ids))
    command = ("trace", "import", path, tmp_path / "t.parquet", "--model-config", model)
    assert "--ordered-by is one of gates, logits, scores; got 'luck'" in refused(
        *command, "--ordered-by", "luck"
    )
    result = run(*command, "--ordered-by", "logits")
    assert result.exit_code == 0 and "which of a token's experts came first" not in result.output
    trace = TraceFile(tmp_path / "t.parquet")
    assert trace.layers["layers.1"].ordered_by == "logits"
    np.testing.assert_array_equal(trace.read("layers.1", ["r"]).experts[0], ids[:, 0])


def test_tokens_of_the_prompt_are_marked(tmp_path: Path) -> None:
    path, model = serving.write(
        tmp_path,
        serving.vllm(routing()),
        {"id": "unknown", "routed_experts": serving.nemo(routing(1, rows=5))},
    )
    api.import_routed_experts([path], tmp_path / "t.parquet", model_config=model)
    read = TraceFile(tmp_path / "t.parquet").read("layers.2", ["unknown", "r"])
    assert read.generated is not None
    assert read.generated.tolist() == [[-1] * ROWS, [0] * PROMPT + [1] * (ROWS - PROMPT)]
    line = {"id": "r", "layer": "l", "num_experts": 3, "experts": [[0], [2]], "generated": [False, True],
            "token_ids": [50_000, 7]}  # fmt: skip
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(line))
    api.import_trace(log, tmp_path / "log.parquet")
    block = TraceFile(tmp_path / "log.parquet").read("l", ["r"], num_tokens=3)
    assert block.generated is not None and block.token_ids is not None
    assert block.generated.tolist() == [[0, 1, -1]] and block.token_ids.tolist() == [[50_000, 7, -1]]
    log.write_text(json.dumps(line | {"token_ids": [-1, 7]}))
    with pytest.raises(UserError, match="token_ids takes whole numbers from 0"):
        api.import_trace(log, tmp_path / "no.parquet")
