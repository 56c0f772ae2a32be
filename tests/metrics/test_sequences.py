"""Reuse along sequences and distinct experts, against loops over tokens that follow the definitions word by word."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.distinct_experts import DistinctExperts
from moeprobe.metrics.analyses.next_token import DISTANCES, NextToken
from moeprobe.metrics.base import ModelAnalysis
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.sequences import Sequences
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.statistic import is_linear
from moeprobe.results.sums import Accumulator, Cell

EXPERTS, TOP_K = 7, 3
# Of each token its experts; None where it is absent.
Token = set[int] | None


def made(
    sequences: int = 9, tokens: int = 21, *, seed: int = 3, gaps: float = 0.08, fewer: float = 0.1
) -> Sequences:
    """Sequences of other lengths, with gaps, whose tokens often keep an expert and some of which have fewer."""
    random = np.random.default_rng(seed)
    experts = np.full((sequences, tokens, TOP_K), -1, np.int16)
    present = np.zeros((sequences, tokens), bool)
    for row in range(sequences):
        favorites = random.random(EXPERTS)
        for token in range(random.integers(0, tokens + 1)):
            scores = random.random(EXPERTS) + favorites
            if token and random.random() < 0.6:
                scores[experts[row, token - 1, 0]] += 2
            experts[row, token] = np.argsort(-scores)[:TOP_K]
            if random.random() < fewer:
                experts[row, token, -1] = -1
            present[row, token] = random.random() >= gaps
    return Sequences(torch.from_numpy(experts), torch.from_numpy(present), EXPERTS)


def tokens_of(subject: Sequences) -> list[list[Token]]:
    return [
        [
            {int(e) for e in chosen if e >= 0} if there else None
            for chosen, there in zip(row, present, strict=True)
        ]
        for row, present in zip(subject.experts.numpy(), subject.present.numpy(), strict=True)
    ]


def numbers(analysis: ModelAnalysis[Sequences], subject: Sequences) -> dict[tuple[str, str], Estimator]:
    columns = {name: column.numpy() for name, column in analysis.sums(subject).items()}
    return {(one.name, one.null): one for one in analysis.estimators(columns, aligned=True)}


def value(found: dict[tuple[str, str], Estimator], name: str, null: str = "") -> float:
    statistic = found[name, null].statistic
    return float(statistic.evaluate(np.ones((len(found[name, null].trials), 1)))[0])


def neighbors(tokens: list[Token]) -> Iterator[tuple[int, set[int], set[int]]]:
    for place, (one, following) in enumerate(itertools.pairwise(tokens)):
        if one is not None and following is not None:
            yield place, one, following


@pytest.mark.parametrize("fewer", [0.0, 0.1])
def test_reuse_and_its_chance_levels_are_those_of_loops(fewer: float) -> None:
    subject = made(fewer=fewer)
    every = tokens_of(subject)
    pairs = [(row, *pair) for row, tokens in enumerate(every) for pair in neighbors(tokens)]
    reuse = np.mean([len(one & following) / TOP_K for *_, one, following in pairs])

    def between(same_place: bool) -> float:
        """Each pair of neighbors of one sequence, beside each of another one; strata weighted by their pairs."""
        places = {place for _, place, *_ in pairs} if same_place else {None}
        total, trials = 0.0, 0
        for stratum in places:
            inside = [pair for pair in pairs if stratum in (None, pair[1])]
            drawn = [
                len(one[2] & other[3]) / TOP_K for one in inside for other in inside if one[0] != other[0]
            ]
            if drawn:
                total += len(inside) * float(np.mean(drawn))
                trials += len(inside)
        return total / trials

    weighted, own, trials = 0.0, 0.0, 0
    for tokens in every:
        there = [(place, token) for place, token in enumerate(tokens) if token is not None]
        drawn = [len(s & t) / TOP_K for p, s in there for q, t in there if abs(p - q) > 1]
        adjacent = [len(one & following) / TOP_K for _, one, following in neighbors(tokens)]
        if drawn and adjacent:
            weighted += len(adjacent) * float(np.mean(drawn))
            own += sum(adjacent)
            trials += len(adjacent)

    found = numbers(NextToken(), subject)
    assert value(found, "next_token_reuse") == pytest.approx(reuse, abs=1e-12)
    assert found["next_token_reuse", ""].trials.sum() == len(pairs)
    assert value(found, "next_token_reuse_chance", "pooled") == pytest.approx(between(False), abs=1e-12)
    assert value(found, "next_token_reuse_chance", "position") == pytest.approx(between(True), abs=1e-12)
    chance = weighted / trials
    assert value(found, "next_token_reuse_chance", "sequence") == pytest.approx(chance, abs=1e-12)
    kappa = (own / trials - chance) / (1 - chance)
    assert value(found, "next_token_reuse_kappa", "sequence") == pytest.approx(kappa, abs=1e-12)
    assert found["next_token_reuse_chance", "sequence"].trials.sum() == trials


def test_reuse_within_some_tokens_is_that_of_loops() -> None:
    subject = made(12, 40, seed=5, gaps=0.03)
    found = numbers(NextToken(), subject)
    for distance in DISTANCES:
        hits, trials = 0, 0
        for tokens in tokens_of(subject):
            for place in range(distance, len(tokens)):
                stretch = tokens[place - distance : place + 1]
                if any(token is None for token in stretch):
                    continue
                before = set().union(*(token for token in stretch[:-1] if token is not None))
                last = stretch[-1] or set()
                hits, trials = hits + len(last & before), trials + len(last)
        name = f"reuse_within_{distance}"
        assert trials > 20 and found[name, ""].trials.sum() == trials
        assert value(found, name) == pytest.approx(hits / trials, abs=1e-12)
        even = 1 - (1 - TOP_K / EXPERTS) ** distance
        assert value(found, f"{name}_chance", "even") == pytest.approx(even, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 21, 32])
def test_distinct_experts_are_those_of_loops(size: int) -> None:
    subject = made(14, 21, seed=8, gaps=0.02)
    every = tokens_of(subject)
    windows = [
        stretch
        for tokens in every
        for start in range(len(tokens) - size + 1)
        if None not in (stretch := tokens[start : start + size])
    ]
    found = numbers(DistinctExperts(size), subject)
    assert found["distinct_experts", ""].trials.sum() == len(windows)
    if not windows:
        assert size > 16 and all(np.isnan(value(found, name)) for name, _ in found)
        return
    distinct = float(np.mean([len(set().union(*(token or set() for token in window))) for window in windows]))
    slots = [token or set() for window in windows for token in window]
    share = np.array([np.mean([expert in token for token in slots]) for expert in range(EXPERTS)])
    # The curve bends down, so the noise of the shares over sequences makes it too low: half of its bend times their
    # variance is added.
    variance = np.zeros(EXPERTS)
    having = [
        [
            stretch
            for start in range(len(tokens) - size + 1)
            if None not in (stretch := tokens[start : start + size])
        ]
        for tokens in every
    ]
    having = [stretches for stretches in having if stretches]
    for stretches in having:
        of_one = [token or set() for stretch in stretches for token in stretch]
        own = np.array([np.mean([expert in token for token in of_one]) for expert in range(EXPERTS)])
        variance += ((own - share) * len(stretches) / len(windows)) ** 2
    variance *= len(having) / max(len(having) - 1, 1)
    bend = size * (size - 1) * (1 - share) ** (size - 2) if size > 1 else 0
    independent = min(float((1 - (1 - share) ** size + bend * variance / 2).sum()), EXPERTS)
    assert value(found, "distinct_experts") == pytest.approx(distinct, abs=1e-12)
    assert value(found, "distinct_experts_independent") == pytest.approx(independent, abs=1e-12)
    assert value(found, "distinct_experts_ratio") == pytest.approx(distinct / independent, abs=1e-12)


def test_sequences_of_one_request_are_one_sample_without_a_pair_between_them() -> None:
    """The last token of one sequence and the first of the next are no neighbors, though they are in one list."""
    # No padding that would keep the sequences apart.
    experts = torch.rand(6, 12, EXPERTS, generator=torch.Generator().manual_seed(2)).argsort(-1)[..., :TOP_K]
    subject = Sequences(experts.to(torch.int16), torch.ones(6, 12, dtype=torch.bool), EXPERTS)
    accumulator, names = Accumulator(), [f"r{row}" for row in range(6)]
    columns = {name: column.numpy() for name, column in NextToken().sums(subject).items()}
    accumulator.add(Cell(layer="l", top_k=TOP_K), names, {"label": np.full(6, -1)} | columns)
    joined = accumulator.by_cluster({"r1": "r0", "r3": "r2"}, lists=NextToken.trial_lists)
    [cell] = joined.cells()
    _, merged = cell.join()
    [apart, together] = [
        {(one.name, one.null): one for one in NextToken().estimators(some, aligned=True)}
        for some in (columns, merged)
    ]
    assert len(together["next_token_reuse", ""].trials) == 4
    for key in (("next_token_reuse", ""), ("next_token_reuse_chance", "sequence"), ("reuse_within_4", "")):
        assert value(together, *key) == pytest.approx(value(apart, *key), abs=1e-12)
        assert together[key].trials.sum() == apart[key].trials.sum()


def test_order_alone_moves_only_the_strict_kappa() -> None:
    """Tokens of a sequence in any order: no κ beyond the sequence, however busy its favorite experts are."""
    random = np.random.default_rng(4)
    experts = np.empty((300, 40, TOP_K), np.int16)
    for row in experts:
        favorites = 1.5 * random.random(EXPERTS)
        row[:] = np.argsort(-(random.random((40, EXPERTS)) + favorites), axis=1)[:, :TOP_K]
    subject = Sequences(torch.from_numpy(experts), torch.ones(300, 40, dtype=torch.bool), EXPERTS)
    found = numbers(NextToken(), subject)
    strict = linearize_all(
        found["next_token_reuse_kappa", "sequence"].statistic, found["next_token_reuse", ""].trials
    )
    assert strict.error is not None and abs(strict.point) < 4 * strict.error < 0.05
    assert value(found, "next_token_reuse_kappa", "pooled") > 0.2


def sampled(random: np.random.Generator, requests: int) -> Sequences:
    """Requests of other lengths whose tokens keep each expert with a probability of their own; E = 12, k = 2."""
    tokens = 20
    experts = np.empty((requests, tokens, 2), np.int16)
    experts[:, 0] = np.argsort(random.random((requests, 12)), axis=1)[:, :2]
    stays = random.beta(2, 3, requests)
    for place in range(1, tokens):
        scores = random.random((requests, 12))
        for choice in range(2):
            kept = random.random(requests) < stays
            rows = np.flatnonzero(kept)
            scores[rows, experts[rows, place - 1, choice]] += 1
        experts[:, place] = np.argsort(-scores, axis=1)[:, :2]
    length = random.integers(2, tokens + 1, requests)
    present = np.arange(tokens) < length[:, None]
    return Sequences(torch.from_numpy(experts), torch.from_numpy(present), 12)


# Of these, the value over very many requests. Windows are of eight tokens.
CASES = (
    ("next_token_reuse", ""),
    ("next_token_reuse_kappa", "pooled"),
    ("next_token_reuse_kappa", "sequence"),
    ("reuse_within_4", ""),
    ("distinct_experts", ""),
    ("distinct_experts_ratio", ""),
)


def cases(subject: Sequences) -> dict[tuple[str, str], Estimator]:
    found = numbers(NextToken(), subject) | numbers(DistinctExperts(8), subject)
    return {case: found[case] for case in CASES}


@pytest.fixture(scope="module")
def truth() -> dict[tuple[str, str], float]:
    world = cases(sampled(np.random.default_rng(0), 40_000))
    return {case: value(world, *case) for case in CASES}


@pytest.mark.parametrize(
    ("requests", "runs"),
    [
        (40, 120),
        pytest.param(200, 60, marks=[pytest.mark.slow, pytest.mark.promise]),
        pytest.param(1000, 60, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover(requests: int, runs: int, truth: dict[tuple[str, str], float]) -> None:
    random, covered = np.random.default_rng(requests), dict.fromkeys(CASES, 0)
    bootstrap = Bootstrap(requests, seed=0)
    for _ in range(runs):
        found = cases(sampled(random, requests))
        resampled = {case: one for case, one in found.items() if not is_linear(one.statistic)}
        asked = [(one.statistic, one.used_trials) for one in resampled.values()]
        intervals = dict(zip(resampled, bootstrap.replicate(asked, paired=False), strict=True))
        for case, one in found.items():
            if case not in intervals:
                intervals[case] = linearize_all(one.statistic, one.used_trials)
            interval = intervals[case].interval()
            covered[case] += interval.low <= truth[case] <= interval.high
    print(requests, {case: round(count / runs, 3) for case, count in covered.items()})
    for case, count in covered.items():
        assert count / runs >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / runs), case
