"""Reuse along recorded sequences: planted recordings whose numbers are known, from responses to tables."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recorded.engine import input_sums
from moeprobe.recorded.engine.sequences import check_layer
from moeprobe.recorded.locality import measure
from moeprobe.recorded.locality.figure import draw
from moeprobe.recorded.locality.sentences import sentences
from moeprobe.recordings.import_experts import import_routed_experts
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.test_load_only import imported, stat
from tests.recordings.test_trace_balance import recording, uniform

# Intervals are asserted.
pytestmark = pytest.mark.resamples


EXPERTS, TOP_K, LAYERS = 20, 5, 2
CONFIG = {"num_hidden_layers": LAYERS, "n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K}
PROMPT, GENERATED = 17, 30
Ids = NDArray[np.int64]


def keeping(random: np.random.Generator, before: Ids, number: int) -> Ids:
    """Experts of a token, so many of them of the token before."""
    others = np.setdiff1d(np.arange(EXPERTS), before)
    parts = random.choice(before, number, replace=False), random.choice(others, TOP_K - number, replace=False)
    return random.permutation(np.concatenate(parts))


def planted(request: int, *, prompt: int = 4, generated: int = 1) -> Ids:
    """Each token keeps so many experts of the one before, in layer 1 none ``(rows, L, K)``."""
    random = np.random.default_rng([7, request])
    ids = np.empty((PROMPT + GENERATED - 1, LAYERS, TOP_K), np.int64)
    ids[0] = [random.permutation(EXPERTS)[:TOP_K] for _ in range(LAYERS)]
    for row in range(1, len(ids)):
        number = prompt if row < PROMPT else generated
        ids[row] = [keeping(random, ids[row - 1, layer], (number, 0)[layer]) for layer in range(LAYERS)]
    return ids


def served(path: Path, ids_of: Callable[[int], Ids], *, requests: int = 24, choices: int = 1) -> Path:
    config = path.with_name("config.json")
    config.write_text(json.dumps(CONFIG))
    lines = []
    for request in range(requests):
        response = serving.vllm(ids_of(request)) | {"id": f"r{request}"}
        response["choices"] = [response["choices"][0] | {"index": index} for index in range(choices)]
        response["usage"] = serving.usage(PROMPT, choices * GENERATED)
        lines.append(json.dumps(response))
    log = path.with_suffix(".jsonl")
    log.write_text("\n".join(lines))
    return import_routed_experts(log, path, model_config=config).path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served(tmp_path_factory.mktemp("locality") / "a.parquet", planted)


def cell(table: pd.DataFrame, metric: str, **wanted: object) -> pd.Series:
    keep = table["metric"] == metric
    for column, content in ({"layer": "layers.0", "tokens": "token", "null": ""} | wanted).items():
        keep &= table[column] == content
    [row] = table[keep].to_dict("records")
    return pd.Series(row)


def test_a_planted_share_is_found_in_prompts_and_generated_tokens(trace: Path) -> None:
    table = api.trace_locality(trace).table
    for tokens, share in (("prompt", 0.8), ("generated", 0.2)):
        assert cell(table, "next_token_reuse", tokens=tokens)["value"] == pytest.approx(share)
        assert cell(table, "reuse_within_1", tokens=tokens)["value"] == pytest.approx(share)
        assert cell(table, "next_token_reuse", tokens=tokens, layer="layers.1")["value"] == 0
    pairs = {"prompt": PROMPT - 1, "generated": GENERATED - 2, "token": PROMPT + GENERATED - 2}
    for tokens, number in pairs.items():
        assert cell(table, "next_token_reuse", tokens=tokens)["trials"] == 24 * number
    # 16 pairs that keep 4 of 5, then the pair between both parts and 28 others that keep 1.
    every = cell(table, "next_token_reuse")
    assert every["value"] == pytest.approx((16 * 0.8 + 29 * 0.2) / 45)
    # All requests reuse as much, so nothing varies.
    assert every["images"] == 24 and every["ci_low"] == pytest.approx(every["ci_high"])
    # Experts are drawn evenly in other requests.
    for null in ("pooled", "position"):
        chance = cell(table, "next_token_reuse_chance", null=null)
        assert chance["value"] == pytest.approx(TOP_K / EXPERTS, abs=0.02)
    beyond = cell(table, "next_token_reuse_kappa", null="sequence", tokens="prompt")
    assert 0.3 < beyond["ci_low"] < beyond["value"] < 0.75
    none = cell(table, "next_token_reuse_kappa", null="sequence", layer="layers.1")
    assert none["ci_high"] < 0


def test_caches_of_planted_tokens(trace: Path) -> None:
    table = api.trace_locality(trace, cache=[10], expert_bytes="2MB", bandwidth="1GB/s").table
    # Tokens of layer 1 share nothing with the one before. A cache of two tokens' experts has what others reuse.
    rates = {
        rule: [
            cell(table, f"cache_hit_{rule}", layer=layer, severity=10.0)["value"]
            for layer in ("layers.0", "")
        ]
        for rule in ("lru", "lfu", "static", "optimal")
    }
    assert rates["lru"][0] > rates["static"][0] > 0.4
    assert rates["optimal"][0] > max(rates[rule][0] for rule in ("lru", "lfu", "static"))
    even = cell(table, "cache_hit_lru_chance", null="even", severity=10.0)
    assert even["value"] == pytest.approx(10 / EXPERTS)
    # Of evenly drawn experts, other requests say nothing.
    assert rates["static"][1] == pytest.approx(10 / EXPERTS, abs=0.03)
    loads = cell(table, "cache_loads_lru", layer="", severity=10.0)["value"]
    assert loads == pytest.approx((1 - rates["lru"][1]) * TOP_K * LAYERS)
    assert cell(table, "cache_bytes_lru", layer="", severity=10.0)["value"] == pytest.approx(2e6 * loads)
    speed = cell(table, "cache_speed_lru", layer="", severity=10.0)
    assert speed["value"] == pytest.approx(1e9 / (2e6 * loads)) and speed["ci_low"] < speed["ci_high"]
    size = cell(table, "cache_size_90_lru", layer="")
    assert 10 < size["ci_low"] < size["value"] < size["ci_high"] < EXPERTS
    shared = cell(table, "shared_cache_hit_lru", layer="", severity=10.0)
    assert shared["images"] == 24 and abs(shared["value"] - rates["lru"][1]) < 0.1
    parts = [
        cell(table, "cache_hit_lru", layer="", severity=10.0, tokens=kind)
        for kind in ("prompt", "generated", "token")
    ]
    assert parts[0]["value"] > parts[1]["value"]
    assert parts[0]["trials"] + parts[1]["trials"] == parts[2]["trials"]


def test_a_single_layer_says_what_is_loaded(trace: Path) -> None:
    """As all layers together do: where one is recorded, or chosen, it is all of them."""
    asked: dict[str, Any] = {"expert_bytes": "2MB", "bandwidth": "1GB/s", "layers": "layers.0"}
    table = api.trace_locality(trace, cache=[10], **asked).table
    hit, loads, loaded, speed = (
        cell(table, f"cache_{what}_lru", severity=10.0)["value"]
        for what in ("hit", "loads", "bytes", "speed")
    )
    assert loads == pytest.approx((1 - hit) * TOP_K)
    assert loaded == pytest.approx(2e6 * loads) and speed == pytest.approx(1e9 / loaded)
    assert any("with LRU and 10 experts per layer, a token loads" in line for line in sentences(table))


def test_requests_at_once_share_a_cache_and_are_one_sample(trace: Path, tmp_path: Path) -> None:
    results = [api.trace_locality(trace, cache=[10], batch=batch) for batch in (1, 4)]
    assert any("4 that are served at once are one sample" in note for note in results[1].sidecar["notes"])
    alone, together = (result.table for result in results)
    one, four = (cell(table, "cache_hit_lru", severity=10.0) for table in (alone, together))
    assert four["images"] == 6 and four["trials"] == one["trials"]
    # Between two tokens of a request come three of others.
    assert four["value"] < one["value"] - 0.05
    reuse = [cell(table, "next_token_reuse")["value"] for table in (alone, together)]
    assert reuse[0] == pytest.approx(reuse[1])
    out = tmp_path / "run"
    result = run("trace", "locality", trace, "--batch", "4", "--out", out)
    assert (
        "Over 6 batches" in result.output
        and "\n6 batches; no intervals: they need at least 20 batches" in result.output
    )
    assert "6 requests" not in result.output


def test_a_shared_cache_of_part_of_the_requests_says_so(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SHARED_TOKENS", 21 * (PROMPT + GENERATED - 1))
    found = api.trace_locality(trace, cache=[10])
    shared = cell(found.table, "shared_cache_hit_lru", layer="", severity=10.0)
    assert shared["images"] == 21 and cell(found.table, "cache_hit_lru", severity=10.0)["images"] == 24
    assert any("one cache for all layers in 3 of the 24 requests" in note for note in found.sidecar["notes"])


def test_caches_of_part_of_the_requests_are_those_of_all(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = api.trace_locality(trace, cache=[10], out=tmp_path / "every", figures=False)
    for name in ("SHARED_TOKENS", "CACHED_TOKENS"):
        monkeypatch.setattr(measure, name, 21 * (PROMPT + GENERATED - 1))
    # Some parts have no such request.
    monkeypatch.setattr(input_sums, "INPUTS_IN_MEMORY", 1)
    part = api.trace_locality(trace, cache=[10], out=tmp_path / "part", figures=False)
    of_caches, of_curves, of_reuse = (
        [sums_of(tmp_path / name, column) for name in ("every", "part")]
        for column in ("cache_hits", "curve_hits", "reuse_hits")
    )
    # Every request has a row, and those that are simulated have the same sums.
    for whole, sample in (of_caches, of_curves):
        is_sample = sample.any(axis=1)
        assert len(sample) == len(whole) and is_sample.mean() == 21 / 24 and whole.any(axis=1).all()
        np.testing.assert_array_equal(sample[is_sample], whole[is_sample])
    np.testing.assert_array_equal(of_reuse[0], of_reuse[1])
    assert cell(part.table, "next_token_reuse")["images"] == 24
    for metric in ("cache_hit_lru", "cache_loads_lru", "shared_cache_hit_lru"):
        numbers = [cell(result.table, metric, layer="", severity=10.0)["images"] for result in (every, part)]
        assert numbers == [24, 21], metric
    assert any("caches in 3 of the 24 requests" in note for note in part.sidecar["notes"])


def test_caches_are_simulated_for_whole_units(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "CACHED_TOKENS", 0)
    units = pd.DataFrame({"image_id": sorted(TraceFile(trace).ids)})
    units["patient"] = [f"p{number % 20}" for number in range(24)]
    units.to_csv(tmp_path / "units.csv", index=False)
    hits = cell(
        api.trace_locality(trace, cache=[10], unit=str(tmp_path / "units.csv")).table,
        "cache_hit_lru",
        severity=10.0,
    )
    # As many units as an interval needs, of which four have two requests.
    assert hits["images"] == 20 and hits["ci_low"] < hits["value"] < hits["ci_high"]


def sums_of(folder: Path, column: str) -> NDArray[np.float64]:
    """Return a column of the sums of requests, in the cells that have it."""
    values = pd.read_parquet(folder / "images.parquet", columns=[column])[column].dropna()
    return np.stack(values.to_list()).astype(np.float64)


def test_the_bytes_of_an_expert_follow_from_the_configuration(trace: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    fields = {"hidden_size": 2048, "moe_intermediate_size": 768, "torch_dtype": "bfloat16"}
    config.write_text(json.dumps(fields))
    table = api.trace_locality(trace, cache=[10], model_config=config).table
    loads = cell(table, "cache_loads_lru", layer="", severity=10.0)["value"]
    # Three matrices of two bytes a number, as of Qwen3-30B-A3B.
    assert cell(table, "cache_bytes_lru", layer="", severity=10.0)["value"] == pytest.approx(
        loads * 3 * 2048 * 768 * 2
    )
    config.write_text(json.dumps(fields | {"quantization_config": {"quant_method": "gptq"}}))
    assert "is of quantized weights" in refused("trace", "locality", trace, "--model-config", config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cache", "5"], "takes from 6 to 20 experts"),
        (["--bandwidth", "25GB/s"], "needs the size of an expert; add"),
        (["--bandwidth", "fast", "--expert-bytes", "9MB"], "takes a number of bytes with its unit"),
        (["--expert-bytes", "0"], "takes a number of bytes with its unit"),
        (["--expert-bytes", "9MB", "--model-config", "c.json"], "says how large an expert is"),
        (["--batch", "4", "--unit", "prompt"], "so --batch takes no --unit; leave one of them out"),
    ],
)
def test_caches_that_make_no_sense_are_refused(trace: Path, words: list[str], message: str) -> None:
    assert message in refused("trace", "locality", trace, *words)


@pytest.mark.slow
@pytest.mark.promise
def test_two_equal_recordings_have_no_side_and_others_do(trace: Path, tmp_path: Path) -> None:
    copied = tmp_path / "b.parquet"
    shutil.copy(trace, copied)
    same = api.trace_locality([trace, copied])
    assert same.comparison is not None and len(same.comparison) == len(same.table) // 2
    assert (same.comparison["value"].fillna(0) == 0).all()
    assert not set(same.comparison["verdict"]) & {"higher", "lower"}
    other = served(tmp_path / "c.parquet", lambda request: planted(request, prompt=3, generated=2))
    comparison = api.trace_locality([trace, other]).comparison
    assert comparison is not None
    prompt, generated = (
        cell(comparison, "next_token_reuse", tokens=tokens) for tokens in ("prompt", "generated")
    )
    assert prompt["value"] == pytest.approx(-0.2) and prompt["verdict"] == "lower"
    assert generated["value"] == pytest.approx(0.2) and generated["verdict"] == "higher"


def test_blocks_of_requests_change_nothing(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = api.trace_locality(trace)
    monkeypatch.setattr(input_sums, "INPUTS_AT_ONCE", 5)
    monkeypatch.setattr(input_sums, "INPUTS_IN_MEMORY", 7)
    assert api.trace_locality(trace).table.equals(whole.table)


def test_choices_of_a_request_are_one_sample(trace: Path, tmp_path: Path) -> None:
    once = api.trace_locality(trace).table
    twice = api.trace_locality(served(tmp_path / "a.parquet", planted, choices=2)).table
    of_requests = ["next_token_reuse", "reuse_distance_50", "reuse_within_4"]
    one, two = (table[table["metric"].isin(of_requests)] for table in (once, twice))
    assert (two["images"].to_numpy() == one["images"].to_numpy()).all()
    assert (two["trials"].to_numpy() == 2 * one["trials"].to_numpy()).all()
    columns = ["value", "ci_low", "ci_high"]
    np.testing.assert_allclose(two[columns].to_numpy(float), one[columns].to_numpy(float))


def test_a_recording_without_marks_has_one_kind_of_tokens(tmp_path: Path) -> None:
    found = api.trace_locality(recording(tmp_path, uniform))
    assert set(found.table["tokens"]) == {"token"}
    assert any("prompt and generated tokens apart" in note for note in found.sidecar["notes"])
    kappa = cell(found.table, "next_token_reuse_kappa", null="sequence")
    assert kappa["ci_low"] < 0 < kappa["ci_high"]


def test_what_has_no_next_token_is_refused(trace: Path, tmp_path: Path) -> None:
    counts = imported(tmp_path, stat(tmp_path / "stat.pt", serving.routing(rows=64), steps=4)).path
    assert "holds counts of choices in layers.1, and no tokens" in refused("trace", "locality", counts)
    every = logged(tmp_path / "every.parquet", {"num_experts": 2, "experts": [[0, 1], [1, 0]]})
    assert "tokens do not choose some of several experts" in refused("trace", "locality", every)
    other = logged(tmp_path / "other.parquet", {"num_experts": EXPERTS, "experts": [[0, 1, 2, 3, 4]]})
    message = refused("trace", "locality", trace, other, "--layers", "layers.0")
    assert "have no input in common" in message
    images = TraceFile(trace)
    images.layers["layers.0"] = replace(images.layers["layers.0"], grid_rows=2, grid_columns=4, patch_size=8)
    with pytest.raises(UserError, match="holds patches of images, which have no next token"):
        check_layer(images, "layers.0")


def logged(path: Path, line: dict[str, object]) -> Path:
    log = path.with_suffix(".jsonl")
    log.write_text(json.dumps({"id": "x", "layer": "layers.0"} | line))
    return api.import_trace(log, path).path


@pytest.mark.pictures
def test_the_command_prints_the_finding_first(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run("trace", "locality", trace, "--out", out)
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert printed.startswith(
        "In layers.0, the first MoE layer (24 requests, 1,080 trials), the reuse of experts"
    )
    assert "beyond other tokens of the same sequence, the next token reuses experts with κ" in printed
    assert "There the reuse is 0.800" in printed and "of generated tokens" in printed
    assert (
        "a cache of 8 experts per layer finds" in printed and "LRU finds 90 % of the choices with" in printed
    )
    assert (out / "figures" / "locality.png").exists()
    again = json.loads(run("trace", "locality", trace, "--json", "--layers", "layers.1").stdout)
    assert {row["layer"] for row in again["table"]} == {"layers.1"}
    report = run("report", out, "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output


@pytest.mark.pictures
def test_lines_of_caches_that_find_the_same_are_both_seen(trace: Path) -> None:
    result = api.trace_locality(trace, figures=False)
    # LFU finds what LRU finds, with the same intervals.
    lru = result.table[result.table["metric"] == "cache_hit_lru"]
    others = result.table[result.table["metric"] != "cache_hit_lfu"]
    same = pd.concat([others, lru.assign(metric="cache_hit_lfu")], ignore_index=True)
    figure = draw(replace(result, table=same))["locality"]
    lines = {str(line.get_label()): line for line in figure.axes[1].get_lines()}
    figure.legends[0].remove()
    canvas = FigureCanvasAgg(figure)

    def picture() -> NDArray[np.int64]:
        canvas.draw()
        return np.asarray(canvas.buffer_rgba(), np.int64)

    whole = picture()
    for label in ("cache, LRU", "cache, LFU"):
        lines[label].set_visible(False)
        changed = (np.abs(picture() - whole).max(axis=-1) > 40).sum()
        lines[label].set_visible(True)
        assert changed > 200, f"{label} lies under the other line"


def test_loads_of_chosen_layers_say_that_they_are_of_these_alone(trace: Path) -> None:
    every, chosen = (
        api.trace_locality(trace, cache=[10], expert_bytes="2MB", layers=layers)
        for layers in (None, ["layers.1"])
    )
    assert not any("MoE layers load" in note for note in every.sidecar.notes)
    assert any(note.startswith("what 1 of the 2 MoE layers load") for note in chosen.sidecar.notes)
    for result, where in ((every, "in 2 MoE layers, or"), (chosen, "in 1 MoE layer, or")):
        assert where in " ".join(sentences(result.table))


def test_a_cache_that_is_large_enough_at_its_smallest_bounds_the_size(trace: Path) -> None:
    table = api.trace_locality(trace, cache=[19], layers=["layers.0"]).table
    lru, hit = cell(table, "cache_size_90_lru"), cell(table, "cache_hit_lru", severity=19.0)
    assert hit["value"] > 0.9 and np.isnan(lru["value"]) and lru["flag"] == "at_smallest"
    assert "LRU finds 90 % of the choices with at most 19 experts per layer" in " ".join(sentences(table))


def test_of_a_single_request_there_is_no_chance_between_requests(tmp_path: Path) -> None:
    table = api.trace_locality(served(tmp_path / "one.parquet", planted, requests=1)).table
    assert cell(table, "next_token_reuse", tokens="prompt")["value"] == pytest.approx(0.8)
    pooled = cell(table, "next_token_reuse_chance", null="pooled")
    assert np.isnan(pooled["value"]) and pooled["flag"] == "no_trials"
    assert cell(table, "next_token_reuse_kappa", null="sequence")["value"] > 0
    assert table["ci_low"].isna().all()


def test_of_a_single_request_no_experts_are_busiest_elsewhere(tmp_path: Path) -> None:
    """A cache of the busiest experts of other requests found 0.000 of the choices where there were none."""
    result = api.trace_locality(served(tmp_path / "one.parquet", planted, requests=1))
    assert not [name for name in set(result.table["metric"]) if "static" in name]
    assert cell(result.table, "cache_hit_lru", layer="", severity=10.0)["value"] > 0
    assert any("caches begin empty" in note for note in result.sidecar["notes"])
    assert not any("busiest" in sentence for sentence in sentences(result.table))


def test_a_cache_of_the_busiest_experts_may_find_more_than_the_optimum(tmp_path: Path) -> None:
    """It takes in nothing that it lacks, so the sentence must not say that no rule finds more.

    Three experts have three of four choices. After a token of two others, one of them has left any other cache.
    """
    lines = [
        {
            "id": f"r{request}",
            "layer": "mlp",
            "num_experts": 8,
            "experts": [[2, 3 + token // 2 % 5] if token % 2 else [0, 1] for token in range(14)],
        }
        for request in range(24)
    ]
    table = api.trace_locality(lines_of(tmp_path / "a.parquet", lines), cache=[3]).table
    rates = [
        cell(table, f"cache_hit_{rule}", layer="mlp", severity=3.0)["value"] for rule in ("static", "optimal")
    ]
    assert rates[0] == pytest.approx(0.75) and rates[1] < 0.6
    assert "and no rule that evicts more than" in " ".join(sentences(table))


def test_layers_of_other_tokens_have_no_cache_in_common(tmp_path: Path) -> None:
    """An encoder has other tokens than the decoder behind it; both chose among as many experts."""
    lines = []
    for request in range(24):
        random = np.random.default_rng([19, request])
        for layer, tokens in (("encoder", 6 + request % 3), ("decoder", 5)):
            experts = random.random((tokens, 6)).argsort(1)[:, :2].tolist()
            lines.append({"id": f"r{request}", "layer": layer, "num_experts": 6, "experts": experts})
    result = api.trace_locality(lines_of(tmp_path / "a.parquet", lines))
    caches = result.table[result.table["metric"] == "cache_hit_lru"]
    assert set(caches["layer"]) == {"encoder", "decoder"}
    assert any("have different numbers of tokens" in note for note in result.sidecar["notes"])


def test_a_token_counts_where_any_layer_has_an_expert_for_it(tmp_path: Path) -> None:
    lines = []
    for request in range(24):
        random = np.random.default_rng([23, request])
        for layer in ("first", "second"):
            experts = random.random((6, 6)).argsort(1)[:, :2]
            if layer == "first":
                experts[::2] = -1
            lines.append({"id": f"r{request}", "layer": layer, "num_experts": 6, "experts": experts.tolist()})
    table = api.trace_locality(lines_of(tmp_path / "a.parquet", lines), cache=[3]).table
    every = {"layer": "", "severity": 3.0}
    rate, loads, shared = (
        cell(table, name, **every) for name in ("cache_hit_lru", "cache_loads_lru", "shared_cache_hit_lru")
    )
    # Three tokens of six have experts in both layers, the others in the second one alone.
    assert rate["trials"] == shared["trials"] == 24 * (3 * 4 + 3 * 2)
    assert loads["value"] == pytest.approx((1 - rate["value"]) * rate["trials"] / (24 * 6))


def lines_of(path: Path, lines: list[dict[str, object]]) -> Path:
    log = path.with_suffix(".jsonl")
    log.write_text("\n".join(map(json.dumps, lines)))
    return api.import_trace(log, path).path
