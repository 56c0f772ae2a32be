"""Experts predicted ahead: against loops, and on planted recordings where the next experts are known."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe import api
from moeprobe.metrics.analyses.prefetch import PREDICTORS, Prefetch, PrefetchHits
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.probes.router_prefetch.sentences import place_of
from moeprobe.recorded.engine.folds import NUM_FOLDS, folds_of, heat_of, without_fold
from moeprobe.recorded.trace_prefetch import measure
from moeprobe.recorded.trace_prefetch.frequencies import Frequencies, found_among, marks_of, pair_counts
from moeprobe.recorded.trace_prefetch.sentences import sentences
from tests.commands import refused, run
from tests.metrics.test_sequences import value
from tests.recordings.test_locality import CONFIG, EXPERTS, LAYERS, TOP_K, Ids, cell, served

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
    assert np.isnan(kappa["ci_low"]) and kappa["flag"] == "fitted" and kappa["value"] > 0.95
    # The tokens before say nothing, and neither do busy experts.
    token = cell(table, "prefetch_token", layer="layers.1", severity=float(TOP_K))
    assert token["value"] == pytest.approx(TOP_K / EXPERTS, abs=0.03)
    even = cell(table, "prefetch_token_chance", layer="layers.1", severity=float(TOP_K), null="even")
    assert even["value"] == TOP_K / EXPERTS
    # Nothing comes before the first layer.
    assert not ((table["layer"] == "layers.0") & table["metric"].str.startswith("prefetch_layer")).any()


def test_predictors_are_compared_over_the_layers_that_have_one_before(tmp_path: Path) -> None:
    """A token of the first layer is predicted from the previous one alone, so all layers together leave it out."""
    table = api.trace_prefetch(served(tmp_path / "a.parquet", repeating, requests=5)).table
    of_all = [
        cell(table, f"prefetch_{predictor}", layer="", severity=float(TOP_K)) for predictor in PREDICTORS
    ]
    assert [row["trials"] for row in of_all] == [5 * (ROWS - 1) * TOP_K] * len(PREDICTORS)
    levels = {
        cell(table, f"prefetch_{one}_chance", layer="", severity=float(TOP_K), null="busiest")["value"]
        for one in PREDICTORS
    }
    assert len(levels) == 1
    said = sentences(table)[0]
    assert said.endswith("). layers.0 has no layer before it, and no part in these numbers."), said
    # A single layer has nothing to be compared over.
    assert "no part" not in sentences(table[table["layer"] == "layers.1"])[0]


def test_layers_of_several_shapes_are_called_by_name() -> None:
    """They are not added up, so a sentence must not speak of all of them."""
    rows = pd.DataFrame({"layer": ["", "a", "b"], "value": [0.2, 0.1, 0.3]})
    for kept, value_read, place in ((["", "a", "b"], 0.2, ""), (["a", "b"], 0.3, " in b"), (["a"], 0.1, "")):
        found, where = place_of(rows[rows["layer"].isin(kept)])
        assert found["value"].tolist() == [value_read] and where == place


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
    cues, targets = marks_of(known, there, 6), marks_of(chosen, there, 6)
    pairs = np.stack([pair_counts(cues[fold], targets[fold]) for fold in range(NUM_FOLDS)])
    found = Frequencies.of(pairs, cues.sum(1).astype(int), targets.sum(1).astype(int), np.full(NUM_FOLDS, 30))
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


CASES = tuple((f"prefetch_{predictor}", "") for predictor in PREDICTORS)


def sampled(random: np.random.Generator, requests: int) -> dict[tuple[str, str], Estimator]:
    """Requests with experts of their own, whose tokens follow the layer before and the previous token to some degree.

    E = 12, k = 2, and four experts are loaded ahead.
    """
    number, tokens, top_k = 12, 20, 2
    habits = np.linspace(0, 2, number) + random.gumbel(size=(requests, 1, number))
    strength = 4 * random.beta(2, 2, (2, requests, 1, 1))
    before = marks(habits + random.gumbel(size=(requests, tokens, number)), top_k)
    scores = habits + strength[0] * np.roll(before, 3, axis=2) + random.gumbel(size=before.shape)
    chosen = np.zeros_like(before)
    for token in range(tokens):
        previous = chosen[:, token - 1 : token] if token else 0
        chosen[:, token : token + 1] = marks(scores[:, token : token + 1] + strength[1] * previous, top_k)
    present = np.arange(tokens) < random.integers(4, tokens + 1, requests)[:, None]
    before, chosen = before * present[..., None], chosen * present[..., None]
    folds, fitted = np.arange(requests) % NUM_FOLDS, {}
    for predictor, known in measure._known_experts(before, chosen):
        counts = measure._Counts.empty(number, number)
        for fold in range(NUM_FOLDS):
            counts.add(fold, known[folds == fold], chosen[folds == fold])
        fitted["l", predictor] = counts.frequencies()
    hits = measure._hits(before, chosen, folds, [4], "l", fitted).of(present)
    parts = hits.hits[:, 0], hits.busiest[:, 0], hits.choices, hits.choices * (4 / number)
    subject = PrefetchHits(*(torch.from_numpy(part) for part in parts))
    columns = {name: column.numpy() for name, column in Prefetch().sums(subject).items()}
    found = {(one.name, one.null): one for one in Prefetch().estimators(columns, aligned=True)}
    return {case: found[case] for case in CASES}


def marks(scores: np.ndarray, top_k: int) -> np.ndarray:
    """The experts with the highest scores ``(..., E)``, as 0 and 1."""
    highest = np.zeros(scores.shape, np.float32)
    np.put_along_axis(highest, np.argsort(-scores, axis=-1)[..., :top_k], 1, axis=-1)
    return highest


@pytest.mark.parametrize(
    ("requests", "runs"),
    [
        pytest.param(40, 50, marks=[pytest.mark.slow, pytest.mark.promise]),
        pytest.param(200, 100, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover(requests: int, runs: int) -> None:
    """The truth is the mean over samples of as many requests: more requests know frequencies better, and find more."""
    random = np.random.default_rng(requests)
    many = [{case: value(sampled(random, requests), *case) for case in CASES} for _ in range(2 * runs)]
    truth = {case: np.mean([one[case] for one in many]) for case in CASES}
    covered, bootstrap = dict.fromkeys(CASES, 0), Bootstrap(requests, seed=0)
    for _ in range(runs):
        found = sampled(random, requests)
        asked = [(one.statistic, one.used_trials) for one in found.values()]
        for case, replicates in zip(found, bootstrap.replicate(asked, paired=False), strict=True):
            interval = replicates.interval()
            covered[case] += int(interval.low <= truth[case] <= interval.high)
    print(requests, {case: round(count / runs, 3) for case, count in covered.items()})
    for case, count in covered.items():
        assert count / runs >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / runs), case


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


def test_the_layer_before_is_that_of_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer follows from the middle one, which is not chosen, and not from the first."""
    monkeypatch.setattr("tests.recordings.test_locality.CONFIG", CONFIG | {"num_hidden_layers": 3})

    def chained(request: int) -> Ids:
        random = np.random.default_rng([12, request])
        ids = random.random((ROWS, 3, EXPERTS)).argsort(2)[..., :TOP_K]
        ids[:, 2] = (ids[:, 1] * 7 + 3) % EXPERTS
        return ids

    trace = served(tmp_path / "a.parquet", chained, requests=30)
    chosen = api.trace_prefetch(trace, layers=["layers.0", "layers.2"]).table
    found = cell(chosen, "prefetch_layer", layer="layers.2", severity=float(TOP_K))
    assert found["value"] > 0.97
    # Whatever is chosen, a layer has the numbers that it has among all.
    numbers = ["metric", "null", "tokens", "severity", "value", "trials"]
    for table in (api.trace_prefetch(trace).table, api.trace_prefetch(trace, layers=["layers.2"]).table):
        of_layer, expected = (
            rows.loc[rows["layer"] == "layers.2", numbers].reset_index(drop=True) for rows in (table, chosen)
        )
        assert len(expected) and of_layer.equals(expected)
    assert set(chosen["layer"]) == {"layers.0", "layers.2", ""}


def test_a_layer_of_other_tokens_predicts_nothing(tmp_path: Path) -> None:
    """An encoder has other tokens than the decoder behind it."""
    log = tmp_path / "log.jsonl"
    lines = []
    for request in range(4):
        random = np.random.default_rng([13, request])
        for layer, tokens in (("encoder", 6), ("decoder.0", 5), ("decoder.1", 5)):
            experts = random.random((tokens, 4)).argsort(1)[:, :2].tolist()
            lines.append({"id": f"r{request}", "layer": layer, "num_experts": 4, "experts": experts})
    log.write_text("\n".join(map(json.dumps, lines)))
    api.import_trace(log, tmp_path / "a.parquet")
    table = api.trace_prefetch(tmp_path / "a.parquet", layers=["decoder.0", "decoder.1"]).table
    assert set(table.loc[table["metric"] == "prefetch_layer", "layer"]) == {"decoder.1", ""}
