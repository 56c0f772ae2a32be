"""Experts predicted ahead: against loops, and on planted recordings where the next experts are known."""

from pathlib import Path

import numpy as np
import pytest

from moeprobe import api
from moeprobe.recorded.engine.folds import NUM_FOLDS, folds_of, heat_of, without_fold
from moeprobe.recorded.trace_prefetch.frequencies import Frequencies, found_among, marks_of, pair_counts
from tests.commands import refused, run
from tests.recordings.test_locality import EXPERTS, LAYERS, TOP_K, Ids, cell, served

# Intervals are asserted.
pytestmark = pytest.mark.resamples
ROWS = 40


def evenly(request: int) -> Ids:
    random = np.random.default_rng([11, request])
    return random.random((ROWS, LAYERS, EXPERTS)).argsort(2)[..., :TOP_K]


def following(request: int) -> Ids:
    """Layer 1 has the experts of layer 0, renumbered."""
    ids = evenly(request)
    ids[:, 1] = (ids[:, 0] * 7 + 3) % EXPERTS
    return ids


def repeating(request: int) -> Ids:
    """In layer 0 each token has the experts of the one before, shifted by one."""
    ids = evenly(request)
    for row in range(1, ROWS):
        ids[row, 0] = (ids[row - 1, 0] + 1) % EXPERTS
    return ids


def test_what_follows_from_the_layer_before_is_found(tmp_path: Path) -> None:
    table = api.trace_prefetch(served(tmp_path / "a.parquet", following, requests=30)).table
    of_layer = cell(table, "prefetch_layer", layer="layers.1", severity=float(TOP_K))
    assert of_layer["value"] > 0.97 and of_layer["images"] == 30
    kappa = cell(table, "prefetch_layer_kappa", layer="layers.1", severity=float(TOP_K), null="busiest")
    assert kappa["ci_low"] > 0.8 and kappa["value"] > 0.95
    # The tokens before say nothing, and neither do busy experts.
    token = cell(table, "prefetch_token", layer="layers.1", severity=float(TOP_K))
    assert token["value"] == pytest.approx(TOP_K / EXPERTS, abs=0.03)
    even = cell(table, "prefetch_token_chance", layer="layers.1", severity=float(TOP_K), null="even")
    assert even["value"] == TOP_K / EXPERTS
    # Nothing comes before the first layer.
    assert not ((table["layer"] == "layers.0") & table["metric"].str.startswith("prefetch_layer")).any()


def test_what_follows_from_the_previous_token_is_found(tmp_path: Path) -> None:
    table = api.trace_prefetch(served(tmp_path / "a.parquet", repeating)).table
    token = cell(table, "prefetch_token", severity=float(TOP_K))
    assert token["value"] > 0.97 and token["trials"] == 24 * (ROWS - 1) * TOP_K
    layer = cell(table, "prefetch_layer", layer="layers.1", severity=float(TOP_K))
    assert layer["value"] == pytest.approx(TOP_K / EXPERTS, abs=0.03)


def test_of_an_even_router_nothing_is_predicted(tmp_path: Path) -> None:
    table = api.trace_prefetch(served(tmp_path / "a.parquet", evenly, requests=40)).table
    kappas = table[table["metric"].str.endswith("_kappa") & (table["null"] == "even")]
    assert len(kappas) and (kappas["ci_low"] < 0.02).all() and (kappas["ci_high"] > -0.02).all()


def test_frequencies_are_those_of_loops_without_the_own_fold() -> None:
    random = np.random.default_rng(0)
    known, chosen = (random.random((NUM_FOLDS, 30, 6)).argsort(2)[..., :2].astype(np.int16) for _ in range(2))
    there = np.ones((NUM_FOLDS, 30), bool)
    marks = marks_of(known, there, 6), marks_of(chosen, there, 6)
    pairs = np.stack([pair_counts(marks[0][fold], marks[1][fold]) for fold in range(NUM_FOLDS)])
    found = Frequencies.of(
        pairs, marks[0].sum(1).astype(int), marks[1].sum(1).astype(int), np.full(NUM_FOLDS, 30)
    )
    for fold in range(NUM_FOLDS):
        tokens = [
            (set(known[other, row].tolist()), set(chosen[other, row].tolist()))
            for other in range(NUM_FOLDS)
            for row in range(30)
            if other != fold
        ]
        for expert in range(6):
            busy = np.mean([expert in has for _, has in tokens])
            for before in range(6):
                having = [has for had, has in tokens if before in had]
                share = (sum(expert in has for has in having) + busy) / (len(having) + 1)
                assert found.conditional[fold, before, expert] == pytest.approx(share, rel=1e-5)


def test_as_many_experts_are_loaded_as_asked_for_even_where_scores_are_equal() -> None:
    scores, busiest = np.zeros((1, 6), np.float32), np.array([0.1, 0.3, 0.1, 0.3, 0.1, 0.1], np.float32)
    everything = np.ones((1, 6), np.float32)
    assert found_among(scores, busiest, everything, [1, 2, 4, 6]).tolist() == [[1, 2, 4, 6]]
    only = np.array([[0, 1, 0, 1, 0, 0]], np.float32)
    assert found_among(scores, busiest, only, [2]).tolist() == [[2]]


def test_requests_of_one_cluster_are_in_one_fold() -> None:
    names = [f"r{number}" for number in range(20)]
    folds = folds_of(names, {"r7": "r6", "r8": "r6"})
    assert folds["r6"] == folds["r7"] == folds["r8"] and len(set(folds.values())) == NUM_FOLDS
    counts = np.array([[3, 0, 1], [0, 2, 2]])
    assert without_fold(counts).tolist() == [[0, 2, 2], [3, 0, 1]]
    assert heat_of(counts).tolist() == [[0, 2, 1], [2, 0, 1]]


@pytest.mark.pictures
def test_the_command_prints_the_finding_first(tmp_path: Path) -> None:
    trace = served(tmp_path / "a.parquet", following)
    result = run("trace", "prefetch", trace, "--out", tmp_path / "run", "--loaded", "5,8")
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert printed.startswith("a: with 5 experts per layer loaded ahead, the share of the choices found is")
    assert (tmp_path / "run" / "figures" / "prefetch.png").exists()
    assert "prompt" in set(api.trace_prefetch(trace, loaded=[5]).table["tokens"])
    single = served(tmp_path / "one.parquet", following, requests=1)
    assert "predictions are made from other requests" in refused("trace", "prefetch", single)
    assert "so no more can be loaded ahead" in refused("trace", "prefetch", trace, "--loaded", "21")
