"""Distinct experts and experts asleep in recorded sequences, of planted recordings whose numbers are known."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from moeprobe import api
from moeprobe.metrics.analyses.asleep import Asleep
from moeprobe.metrics.sequences import Sequences
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.recorded.trace_batches.sentences import sentences
from tests.commands import run
from tests.metrics.test_sequences import made, numbers, sampled, tokens_of, value
from tests.recordings.test_locality import EXPERTS, LAYERS, TOP_K, cell, planted, served

# Intervals are asserted.
pytestmark = pytest.mark.resamples


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served(tmp_path_factory.mktemp("batches") / "a.parquet", planted)


def test_distinct_experts_of_planted_tokens(trace: Path) -> None:
    table = api.trace_batches(trace).table
    distinct = table[(table["metric"] == "distinct_experts") & (table["tokens"] == "token")]
    assert sorted(set(distinct["severity"])) == [1, 2, 4, 8, 16, 32]
    assert cell(table, "distinct_experts", severity=1.0)["value"] == TOP_K
    # Two tokens of layer 1 share none, of which independent tokens would share a quarter.
    two = {
        name: cell(table, f"distinct_experts{name}", severity=2.0, layer="layers.1")["value"]
        for name in ("", "_independent", "_ratio")
    }
    assert two[""] == 2 * TOP_K
    assert two["_independent"] == pytest.approx(2 * TOP_K - TOP_K**2 / EXPERTS, abs=0.05)
    assert two["_ratio"] == pytest.approx(two[""] / two["_independent"])
    # Two tokens of a prompt share four.
    assert cell(table, "distinct_experts", severity=2.0, tokens="prompt")["value"] == TOP_K + 1
    # No prompt has 32 tokens.
    none = cell(table, "distinct_experts", severity=32.0, tokens="prompt")
    assert np.isnan(none["value"]) and none["flag"] == "no_trials"
    even = cell(table, "distinct_experts_even", severity=2.0)
    assert even["value"] == pytest.approx(EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** 2))


def test_experts_asleep_are_those_of_loops() -> None:
    subject = made(11, 9, seed=6)
    every = [[token for token in tokens if token is not None] for tokens in tokens_of(subject)]
    requests = [tokens for tokens in every if tokens]
    used = [set().union(*tokens) for tokens in requests]
    anybody = set().union(*used)
    found = numbers(Asleep(), subject)
    assert value(found, "asleep_experts") == pytest.approx(np.mean([len(anybody - one) for one in used]))
    flat = [token for tokens in requests for token in tokens]
    shares = [np.mean([expert in token for token in flat]) for expert in anybody]
    missed = np.mean([sum((1 - share) ** len(tokens) for share in shares) for tokens in requests])
    assert value(found, "asleep_experts_independent") == pytest.approx(missed)


def test_independent_tokens_have_no_more_experts_asleep_than_they_should() -> None:
    random = np.random.default_rng(1)
    experts = (random.random((400, 12, 16)) + 0.4 * np.arange(16) / 16).argsort(2)[..., -2:]
    subject = Sequences(torch.from_numpy(experts.astype(np.int16)), torch.ones(400, 12, dtype=torch.bool), 16)
    found = numbers(Asleep(), subject)["asleep_experts_excess", ""]
    excess = linearize_all(found.statistic, found.trials)
    assert excess.error is not None and abs(excess.point) < 4 * excess.error < 0.5


CASES = (("asleep_experts", ""), ("asleep_experts_independent", ""), ("asleep_experts_excess", ""))


@pytest.mark.parametrize(("requests", "runs"), [(40, 60), pytest.param(200, 100, marks=pytest.mark.slow)])
def test_intervals_of_experts_asleep_cover(requests: int, runs: int) -> None:
    world = numbers(Asleep(), sampled(np.random.default_rng(0), 20_000))
    truth = {case: value(world, *case) for case in CASES}
    random, covered = np.random.default_rng(requests), dict.fromkeys(CASES, 0)
    for _ in range(runs):
        found = numbers(Asleep(), sampled(random, requests))
        for case in CASES:
            interval = linearize_all(found[case].statistic, found[case].trials).interval()
            covered[case] += interval.low <= truth[case] <= interval.high
    print(requests, {case: round(count / runs, 3) for case, count in covered.items()})
    for case, count in covered.items():
        assert count / runs >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / runs), case


def test_planted_requests_leave_experts_asleep(tmp_path: Path) -> None:
    def half(request: int) -> np.ndarray:
        """Each request has ten experts of its own in layer 1, and all of them in layer 0."""
        ids = planted(request)
        random = np.random.default_rng(request)
        own = random.permutation(EXPERTS)[: EXPERTS // 2]
        ids[:, 1] = [random.permutation(own)[:TOP_K] for _ in ids]
        return ids

    table = api.trace_batches(served(tmp_path / "half.parquet", half)).table
    asleep = cell(table, "asleep_experts", layer="layers.1")
    assert asleep["value"] == EXPERTS // 2 and asleep["images"] == 24
    assert cell(table, "asleep_experts_excess", layer="layers.1")["ci_low"] > 9
    shares = table[(table["metric"] == "expert_asleep") & (table["layer"] == "layers.1")]
    of_tokens = shares[shares["tokens"] == "token"]
    assert len(of_tokens) == EXPERTS and of_tokens["value"].mean() == pytest.approx(0.5)
    assert LAYERS == 2


def test_sentences_are_short_and_have_no_brackets_in_brackets(trace: Path) -> None:
    table = api.trace_batches(trace).table
    # Two tokens; of 32 both layers use all experts.
    table = table[~(table["severity"] > 2)]
    several, single = sentences(table), sentences(table[table["layer"].isin(["layers.0", ""])])
    assert (
        "use the fewest distinct experts in layers." in several[0] and "The most are in layers." in several[0]
    )
    assert re.search(r"2 consecutive tokens use [\d.]+ \[.*\] distinct experts in layers\.0\. ", single[0])
    for text in (*several, *single):
        assert not re.search(r"\([^)]*[(\[]|\[[^\]]*[(\[]", text), text
        assert max(len(sentence.split()) for sentence in re.split(r"(?<=\.) ", text)) <= 25, text


@pytest.mark.pictures
def test_the_command_prints_the_finding_first(trace: Path, tmp_path: Path) -> None:
    result = run("trace", "batches", trace, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "32 consecutive tokens use" in printed and "experts asleep in layers." in printed
    assert (tmp_path / "run" / "figures" / "batches.png").exists()
