"""Recordings at the edges: one request, requests alike, tokens without experts, layers of other tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe import api
from moeprobe.cli.front.screen import footing
from moeprobe.errors import UserError
from moeprobe.probes.coverage.sentences import sentences as coverage_sentences
from moeprobe.recorded.drift.sentences import sentences as drift_sentences
from moeprobe.recorded.trace_balance.sentences import sentences as balance_sentences
from moeprobe.recorded.trace_batches.sentences import sentences as batches_sentences
from moeprobe.recorded.trace_prefetch.sentences import sentences as prefetch_sentences
from tests.routing.routings import checkpoint

# Intervals are asserted.
pytestmark = pytest.mark.resamples

EXPERTS = 6


def recorded(path: Path, choices: dict[str, dict[str, Any]], *, experts: int = EXPERTS) -> Path:
    """A trace of the choices ``(T, K)`` by request and layer; -1 = none."""
    log = path.with_suffix(".jsonl")
    log.write_text(
        "\n".join(
            json.dumps(
                {"id": name, "layer": layer, "num_experts": experts, "experts": np.asarray(of_layer).tolist()}
            )
            for name, layers in choices.items()
            for layer, of_layer in layers.items()
        )
    )
    return api.import_trace(log, path).path


def drawn(seed: int, tokens: int, *, top_k: int = 2, experts: int = EXPERTS) -> Any:
    return np.random.default_rng(seed).random((tokens, experts)).argsort(1)[:, :top_k]


def test_coverage_counts_a_token_where_any_layer_has_an_expert_for_it(tmp_path: Path) -> None:
    """It counted those of the last layer alone, and needed too few."""
    choices = {}
    for request in range(24):
        first, last = drawn(request, 6), drawn(100 + request, 6)
        last[::2] = -1
        choices[f"r{request}"] = {"first": first, "last": last}
    table = api.trace_coverage(recorded(tmp_path / "a.parquet", choices), need=2).table
    whole = table[table["layer"] == ""].set_index("metric")
    assert whole.loc["tokens_needed", "trials"] == 24 * 6
    assert whole.loc["experts_covered", "severity"].max() == 24 * 6


def test_coverage_refuses_layers_of_other_tokens(tmp_path: Path) -> None:
    choices = {
        f"r{request}": {"encoder": drawn(request, 7), "decoder": drawn(request, 4)} for request in range(3)
    }
    path = recorded(tmp_path / "a.parquet", choices)
    with pytest.raises(UserError, match="different numbers of tokens for one input"):
        api.trace_coverage(path)
    assert len(api.trace_coverage(path, layers=["decoder"], need=1).table)


def test_coverage_without_a_covered_expert_names_no_subset(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "a.parquet", {f"r{request}": {"mlp": drawn(request, 3)} for request in range(3)}
    )
    [sentence] = coverage_sentences(api.trace_coverage(path, need=100).table)
    assert sentence == "a: all 6 experts have too few tokens in all 9 (an even router needs 331)."


def test_where_nobody_is_asleep_no_request_uses_the_sleeping(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.parquet", {"r": {"mlp": drawn(1, 9)}})
    said = " ".join(batches_sentences(api.trace_batches(path).table))
    assert "leaves 0.000" in said and "Other requests" not in said


def test_requests_alike_have_a_load_that_stays(tmp_path: Path) -> None:
    """Nothing varies, so there is no test of 0 experts."""
    path = recorded(tmp_path / "a.parquet", {f"r{request:02}": {"mlp": drawn(1, 9)} for request in range(24)})
    said = balance_sentences(api.trace_balance(path).table)
    assert (
        "In every request each expert has the same share of the load, so nothing changes with time." in said
    )
    assert not any("0 experts" in sentence for sentence in said)


def test_where_tokens_choose_all_experts_none_is_hot(tmp_path: Path) -> None:
    choices = {f"r{request}": {"mlp": [[0, 1, 2]] * 4} for request in range(24)}
    path = recorded(tmp_path / "a.parquet", choices, experts=3)
    with pytest.raises(UserError, match="none is hotter than another"):
        api.trace_balance(path)


def test_recorded_images_are_called_images(tmp_path: Path) -> None:
    asked: Any = {"data": "digits", "limit": 24}
    [path] = api.record(checkpoint(), out=tmp_path, **asked).files
    result = api.trace_balance(path, ranks=2, figures=False)
    assert set(result.table["tokens"]) == {"patch"}
    assert footing(result).startswith("24 images of digits test; ")
    assert balance_sentences(result.table)


def test_one_layer_has_not_moved_most_of_one_layers(tmp_path: Path) -> None:
    first, last = (
        recorded(
            tmp_path / f"step-{step}.parquet",
            {f"r{request}": {"mlp": drawn(request + step, 6)} for request in range(24)},
        )
        for step in (0, 100)
    )
    [sentence] = drift_sentences(api.drift([first, last]).table)
    assert sentence.startswith("From the first checkpoint to step-100 the routing moved in mlp: κ ")
    assert "of 1 layers" not in sentence


def test_one_expert_is_loaded_and_not_1_experts(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "a.parquet", {f"r{request}": {"mlp": drawn(request, 6, top_k=1)} for request in range(24)}
    )
    [sentence] = prefetch_sentences(api.trace_prefetch(path).table)
    assert "with 1 expert per layer" in sentence
