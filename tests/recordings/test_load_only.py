"""Files that hold how often each expert was chosen, and no token: the load, and nothing that needs a token."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.metrics.analyses.load import LoadAnalysis
from moeprobe.recorded.engine.across import load_of
from moeprobe.recordings.check_trace import check_trace
from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.serving import routing

SPARSE = (1, 2, 3, 4)


def imported(folder: Path, path: Path, to: str = "t.parquet", **more: Any) -> ImportedExperts:
    model = folder / "config.json"
    model.write_text(json.dumps(serving.DEEPSEEK))
    return import_routed_experts(path, folder / to, model_config=model, overwrite=True, **more)


def counts(ids: np.ndarray) -> np.ndarray:
    """How often each of 8 experts is in ``(T, L, K)``, layer by layer, in plain Python."""
    found = np.zeros((ids.shape[1], 8), np.int64)
    for token in ids:
        for layer, experts in enumerate(token):
            for expert in experts:
                found[layer, expert] += 1
    return found


def csv(path: Path, ids: np.ndarray, *, header: bool = True, end: str = "\n") -> Path:
    """As llama.cpp's moe-trace writes it: a row per activation, layers of a batch one after another."""
    rows = [
        f"{layer},{expert}"
        for place, layer in enumerate(SPARSE)
        for token in ids[:, place]
        for expert in token
    ]
    path.write_bytes(end.join((["layer,expert"] if header else []) + rows + [""]).encode())
    return path


def stat(path: Path, ids: np.ndarray, *, steps: int = 3, float_counts: bool = False) -> Path:
    """As SGLang's recorder saves its stat mode on rank 0; the last step is an empty buffer."""
    logical = torch.zeros((steps + 1, 5, 8), dtype=torch.float32 if float_counts else torch.int32)
    for step, part in enumerate(np.array_split(ids, steps)):
        logical[step, list(SPARSE)] = torch.from_numpy(counts(part)).to(logical.dtype)
    torch.save({"rank": 0, "logical_count": logical, "average_utilization_rate_over_window": 0.5}, path)
    return path


@pytest.mark.parametrize(("header", "end"), [(True, "\n"), (False, "\n"), (True, "\r\n")])
def test_csv_of_llama_cpp(header: bool, end: str, tmp_path: Path) -> None:
    ids = routing(rows=200)
    found = imported(tmp_path, csv(tmp_path / "moe_trace.csv", ids, header=header, end=end))
    assert found.readers == ["llama_cpp"] and found.counted == ids.size and found.tokens == 0
    trace = TraceFile(tmp_path / "t.parquet")
    assert list(trace.layers) == [f"layers.{number}" for number in SPARSE]
    got = np.stack([trace.counts(layer, trace.ids)[0] for layer in trace.layers])
    assert np.array_equal(got, counts(ids))
    again = imported(tmp_path, csv(tmp_path / "moe_trace.csv", ids[::-1]), "u.parquet", name="t")
    assert again.counted == found.counted
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "u.parquet").read_bytes()


@pytest.mark.parametrize("float_counts", [True, False])
def test_stat_mode_of_sglang(float_counts: bool, tmp_path: Path) -> None:
    ids = routing(rows=200)
    found = imported(tmp_path, stat(tmp_path / "s.pt", ids, float_counts=float_counts))
    assert found.readers == ["sglang_counts"] and found.requests == 3 and found.left_out == ["rank0/step3"]
    trace = TraceFile(tmp_path / "t.parquet")
    got = np.stack([trace.counts(layer, trace.ids).sum(0) for layer in trace.layers])
    assert np.array_equal(got, counts(ids))


def test_of_ordered_choices_all_count_beside_counts_of_all() -> None:
    trace = TraceFile(Path(__file__).parent / "version_1" / "gates.parquet")
    layer = trace.layers["layers.1"]
    assert layer.ordered and layer.top_k == 2
    [columns] = load_of(trace, "layers.1", trace.ids).values()
    beside = LoadAnalysis.sums_of_counts(columns["load"], top_k=2)
    of_tokens, of_counts = (
        {
            (metric.name, metric.expert)
            for metric in LoadAnalysis().estimators(
                {name: one.numpy() for name, one in sums.items()}, aligned=True
            )
        }
        for sums in (columns, beside)
    )
    assert of_tokens == of_counts and ("load_entropy", None) in of_tokens


def test_the_load_is_that_of_the_tokens_and_there_is_no_match(tmp_path: Path) -> None:
    ids = routing(rows=60)
    imported(tmp_path, stat(tmp_path / "s.pt", ids))
    steps = [
        serving.vllm(part) | {"id": f"step{step}", "usage": serving.usage(1, len(part))}
        for step, part in enumerate(np.array_split(ids, 3))
    ]
    response, _ = serving.write(tmp_path, *steps)
    imported(tmp_path, response, "tokens.parquet")
    load = api.analyze_trace(tmp_path / "t.parquet").table
    assert set(load["metric"]) == {"load_entropy", "dead_experts", "expert_share"}
    whole = api.analyze_trace(tmp_path / "tokens.parquet").table
    key = ["layer", "metric", "expert"]
    for metric in ("load_entropy", "expert_share"):
        one, other = (
            table[table["metric"] == metric].set_index(key)["value"].sort_index() for table in (load, whole)
        )
        assert len(one) and np.allclose(one, other)
    changed = routing(1, rows=60)
    imported(tmp_path, stat(tmp_path / "s.pt", changed), "other.parquet")
    result = run(
        "trace", "analyze", tmp_path / "t.parquet", tmp_path / "other.parquet", "--out", tmp_path / "r"
    )
    assert result.exit_code == 0, result.output
    assert "no match, no chance, no κ" in " ".join(result.output.split())
    compared = run("compare", tmp_path / "r")
    # Recorded requests are of no split.
    assert compared.exit_code == 0 and " of requests; view recorded" in compared.output, compared.output
    table = pd.read_csv(tmp_path / "r" / "table.csv")
    assert not [name for name in table["metric"] if "match" in name or "kappa" in name or "jaccard" in name]
    share = table[(table["metric"] == "expert_share") & (table["checkpoint"] == "other")]
    expected = counts(changed) / counts(changed).sum(1, keepdims=True)
    assert np.allclose(np.sort(share["value"]), np.sort(expected.ravel()))
    assert share["ci_low"].isna().all(), "three steps are too few for an interval"


def test_command_says_what_there_is(tmp_path: Path) -> None:
    path = csv(tmp_path / "moe_trace.csv", routing())
    (tmp_path / "config.json").write_text(json.dumps(serving.DEEPSEEK))
    command = (
        "trace",
        "import",
        path,
        tmp_path / "t.parquet",
        "--model-config",
        tmp_path / "config.json",
    )
    said = " ".join(run(*command).output.split())
    assert "104 choices" in said and "the load of the experts alone, and no match" in said
    assert "It holds counts of choices and no tokens" in run("trace", "check", tmp_path / "t.parquet").output
    assert check_trace(tmp_path / "t.parquet").sound
    assert "leave --against out" in refused(
        "trace", "check", tmp_path / "t.parquet", "--against", tmp_path / "t.parquet"
    )


def test_what_no_router_chose_is_refused(tmp_path: Path) -> None:
    ids = routing()
    path = tmp_path / "moe_trace.csv"

    def refusal(**more: Any) -> str:
        with pytest.raises(UserError) as error:
            imported(tmp_path, path, **more)
        assert not (tmp_path / "t.parquet").exists() and "\n" not in str(error.value)
        return str(error.value)

    csv(path, np.zeros_like(ids))
    assert "known as an all-zero capture" in refusal()
    csv(path, ids + 3)
    assert "expert 10 is none of the 8 experts of the model" in refusal()
    path.write_text("layer,expert\n0,3\n" * 1)
    assert "layer 0 is dense by the model's config.json" in refusal()
    path.write_text("layer,expert\n1,3\n1,2\n")
    assert "layers.2 has no choices" in refusal()
    path.write_text("layer,expert\n" + "".join(f"{layer},3\n{layer},3\n{layer},2\n" for layer in SPARSE))
    assert "more than one of 2 for each token" in refusal()
    path.write_text("layer,expert\n1,3\n1,x\n")
    assert "'x' names no expert" in refusal()
    path.write_text("layer,expert\n1,3\n1,70000\n")
    assert "beyond 0 to 32,767" in refusal()
    csv(path, ids)
    assert "counts of choices have no order" in refusal(ordered_by="gates")
    mixed, _ = serving.write(tmp_path, serving.vllm(ids))
    with pytest.raises(UserError, match="import these files separately"):
        imported(tmp_path, [path, mixed])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="import these files separately"):
        imported(tmp_path, [mixed, path])  # type: ignore[arg-type]
    torch.save({"rank": 0, "logical_count": torch.full((1, 5, 8), 0.5)}, tmp_path / "s.pt")
    with pytest.raises(UserError, match="takes whole numbers"):
        imported(tmp_path, tmp_path / "s.pt")


def test_layers_of_multi_token_prediction_are_named(tmp_path: Path) -> None:
    path = csv(tmp_path / "m.csv", routing())
    path.write_text(f"{path.read_text()}5,0\n")
    with pytest.raises(
        UserError, match="layer 5 is none of the 5 layers of the model: known as the layer of multi"
    ):
        imported(tmp_path, path)
    behind = torch.ones(1, 6, 8, dtype=torch.int32)
    torch.save(
        {"rank": 0, "logical_count": behind, "average_utilization_rate_over_window": 0.5}, tmp_path / "s.pt"
    )
    with pytest.raises(
        UserError, match=r"counts of 6 layers and 8 experts; .*; known as the layer of multi-token"
    ):
        imported(tmp_path, tmp_path / "s.pt")
