"""Caches of experts against a simulator that follows the rules word by word, and intervals that cover."""

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.cache_size import CacheSize, HitCurve
from moeprobe.metrics.analyses.expert_cache import CacheHits, ExpertCache
from moeprobe.metrics.analyses.reuse_distance import ReuseDistance
from moeprobe.metrics.base import Analysis
from moeprobe.metrics.cache_policies import POLICIES, Lookups
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.sequences import Sequences
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.linearized import linearize_all
from tests.metrics.test_sequences import sampled, value

EXACT = ("lru", "lfu", "static", "optimal")
Tokens = list[list[int]]


def simulated(
    tokens: Tokens, rank: list[int], start: list[int], size: int, rule: str, random: np.random.Generator
) -> list[int]:
    """Hits of each token; ``start`` is in the cache at first, ``rank`` breaks ties."""
    cache, hits = set(start), []
    last, count = dict.fromkeys(range(len(rank)), -1), dict.fromkeys(range(len(rank)), 0)
    for now, token in enumerate(tokens):
        hits.append(len(cache & set(token)))
        if rule == "static":
            continue
        for expert in token:
            last[expert], count[expert] = now, count[expert] + 1

        def worth(expert: int, now: int = now) -> tuple[float, int]:
            following = (later for later in range(now + 1, len(tokens)) if expert in tokens[later])
            return {
                "lru": last[expert],
                "lfu": count[expert],
                "optimal": -next(following, len(tokens)),
                "random": random.random(),
            }[rule], -rank[expert]

        cache |= set(token)
        others = sorted(cache - set(token), key=worth, reverse=True)
        cache = set(token) | set(others[: size - len(token)])
    return hits


def chosen(experts: np.ndarray) -> Tokens:
    """The experts of each token, without missing ones."""
    return [token[token >= 0].tolist() for token in experts]


def hits_of(lookups: Lookups, sizes: list[int]) -> dict[str, np.ndarray]:
    """Hits of each rule token by token ``(R, J, S)``."""
    each = np.eye(lookups.present.shape[1], dtype=bool)[:, None]
    hits = lookups.hits(sizes, each & lookups.present).transpose(1, 0, 2, 3)
    return {rule: hits[..., index] for index, rule in enumerate(POLICIES)}


def test_every_rule_finds_what_a_simulator_finds() -> None:
    random = np.random.default_rng(0)
    rows = 3
    for trial in range(60):
        number, top_k = int(random.integers(6, 20)), int(random.integers(1, 4))
        length = int(random.integers(1, 30))
        weights = 0.9 * random.dirichlet(np.full(number, 0.5)) + 0.1 / number
        experts = np.array(
            [
                [random.choice(number, top_k, replace=False, p=weights) for _ in range(length)]
                for _ in range(rows)
            ],
            np.int16,
        )
        if trial % 3 == 0:
            # Tokens with fewer experts, or none, and at any place.
            experts[random.random(experts.shape) < 0.4] = -1
        present = random.random((rows, length)) < 0.9
        heat = np.array([random.permutation(number) for _ in range(rows)]) if trial % 2 else None
        # Two of them differ by less than a token has experts.
        sizes = sorted({top_k + 1, top_k + 2, (top_k + 1 + number) // 2, number})
        hits = hits_of(Lookups(experts, present, heat, number), sizes)
        for row in range(rows):
            tokens = chosen(experts[row, present[row]])
            if not tokens:
                continue
            rank = list(range(number)) if heat is None else heat[row].tolist()
            for column, size in enumerate(sizes):
                start = [] if heat is None else [expert for expert in range(number) if rank[expert] < size]
                for rule in EXACT:
                    found = hits[rule][row, present[row], column].tolist()
                    if rule != "static" or start:
                        assert found == simulated(tokens, rank, start, size, rule, random), (trial, rule)
                assert hits["optimal"][row, :, column].sum() >= hits["lru"][row, :, column].sum()
        assert all((hits[rule][~present] == 0).all() for rule in POLICIES)


@pytest.mark.parametrize(
    ("number", "fewest", "top_k", "size"), [(16, 2, 2, 6), (16, 1, 1, 4), (32, 4, 4, 12), (16, 1, 4, 6)]
)
def test_random_eviction_is_the_mean_of_simulations(number: int, fewest: int, top_k: int, size: int) -> None:
    random = np.random.default_rng(1)
    weights = 0.8 * random.dirichlet(np.full(number, 0.5)) + 0.2 / number
    experts = np.array([random.choice(number, top_k, replace=False, p=weights) for _ in range(60)], np.int16)
    experts[np.arange(top_k) >= random.integers(fewest, top_k + 1, (60, 1))] = -1
    tokens, choices = chosen(experts), np.count_nonzero(experts >= 0)
    heat = np.arange(number)
    lookups = Lookups(experts[None], np.ones((1, 60), bool), heat[None], number)
    expected = float(hits_of(lookups, [size])["random"].sum()) / choices
    drawn = [
        sum(simulated(tokens, heat.tolist(), list(range(size)), size, "random", random)) for _ in range(60)
    ]
    means = np.array(drawn) / choices
    assert expected == pytest.approx(means.mean(), abs=0.005 + 4 * means.std() / np.sqrt(60))


def even_router(rows: int, length: int, number: int, top_k: int) -> np.ndarray:
    scores = np.random.default_rng(2).random((rows, length, number))
    return scores.argpartition(top_k, axis=2)[..., :top_k].astype(np.int16)


def test_an_even_router_is_found_as_often_as_the_cache_is_large() -> None:
    experts = even_router(40, 200, 32, 4)
    heat = np.tile(np.random.default_rng(3).permutation(32), (40, 1))
    hits = hits_of(Lookups(experts, np.ones((40, 200), bool), heat, 32), [8, 16])
    for rule in ("lru", "lfu", "static", "random"):
        share = hits[rule].mean((0, 1)) / 4
        # 8,000 tokens: four standard errors are below 0.012.
        np.testing.assert_allclose(share, [8 / 32, 16 / 32], atol=0.012)
    assert (hits["optimal"].mean((0, 1)) / 4 > [0.4, 0.65]).all()


def test_of_a_periodic_router_a_cache_finds_all_or_nothing() -> None:
    """Five experts in turn: LRU forgets each just before it comes again, unless all of them fit."""
    experts = np.tile(np.arange(5, dtype=np.int16), 20)[None, :, None]
    hits = hits_of(Lookups(experts, np.ones((1, 100), bool), None, 8), [4, 5])
    assert hits["lru"].sum((0, 1)).tolist() == [0, 95]
    assert hits["optimal"][..., 1].sum() == 95 and 60 < hits["optimal"][..., 0].sum() < 95


def test_a_missing_choice_evicts_nothing() -> None:
    """One expert of two per token, three in turn: they all fit, so each is missed only once."""
    experts = np.full((1, 60, 2), -1, np.int16)
    experts[0, :, 0] = np.arange(60) % 3
    hits = hits_of(Lookups(experts, np.ones((1, 60), bool), None, 8), [3])
    assert hits["lru"].sum() == hits["optimal"].sum() == 57


def test_tokens_are_counted_in_their_groups() -> None:
    """Tokens of many experts, of which each finds all but one that the token before had."""
    top_k, length = 130, 6
    experts = (np.arange(top_k) + np.arange(length)[:, None])[None].astype(np.int16)
    groups = np.arange(length)[None, None] >= np.array([0, 2, length])[:, None, None]
    lookups = Lookups(experts, np.ones((1, length), bool), None, top_k + length)
    hits = lookups.hits([top_k + 1, top_k + 2], groups)
    exact = hits[:, 0, :, [POLICIES.index(rule) for rule in ("lru", "lfu", "optimal")]]
    assert (
        exact.transpose(1, 0, 2) == (top_k - 1) * np.array([length - 1, length - 2, 0])[:, None, None]
    ).all()


def test_distances_of_a_periodic_router() -> None:
    for period in (3, 8, 16):
        experts = torch.arange(400, dtype=torch.int16).remainder(period)[None, :, None]
        found = numbers(ReuseDistance(), Sequences(experts, torch.ones(1, 400, dtype=torch.bool), 16))
        for name in ("reuse_distance_50", "reuse_distance_90"):
            # On the way from one token less.
            assert period - 1 < value(found, name) < period


def numbers(analysis: Analysis, subject: object) -> dict[tuple[str, str], Estimator]:
    columns = {name: column.numpy() for name, column in analysis.sums(subject).items()}  # type: ignore[attr-defined]
    return {(one.name, one.null): one for one in analysis.estimators(columns, aligned=True)}


CASES = (
    ("cache_hit_lru", ""),
    ("cache_hit_lru_kappa", "eviction"),
    ("cache_hit_optimal", ""),
    ("cache_loads_lru", ""),
    ("cache_size_90_lru", ""),
    ("reuse_distance_50", ""),
)


def cases(requests: Sequences) -> dict[tuple[str, str], Estimator]:
    experts, present = requests.experts.numpy(), requests.present.numpy()
    heat = np.tile(np.arange(12), (len(present), 1))
    sizes = [3, 5, 8]
    [hits] = Lookups(experts, present, heat, 12).hits(sizes, present[None])
    sums = torch.from_numpy(hits)
    tokens = torch.from_numpy(present.sum(1))
    of_size = CacheHits(sums[:, 1], 2 * tokens, tokens * 2 * 5 / 12, tokens)
    every = (2 * tokens).double()[:, None, None].expand(-1, 1, len(POLICIES))
    curve = HitCurve(
        torch.cat([sums, every], 1), 2 * tokens, torch.tensor([*sizes, 12]).expand(len(present), -1)
    )
    found = numbers(ExpertCache(), of_size) | numbers(CacheSize(), curve)
    found |= numbers(ReuseDistance(), requests)
    return {case: found[case] for case in CASES}


@pytest.fixture(scope="module")
def truth() -> dict[tuple[str, str], float]:
    world = cases(sampled(np.random.default_rng(0), 10_000))
    return {case: value(world, *case) for case in CASES}


@pytest.mark.parametrize(("requests", "runs"), [(40, 40), pytest.param(200, 100, marks=pytest.mark.slow)])
def test_intervals_cover(requests: int, runs: int, truth: dict[tuple[str, str], float]) -> None:
    random, covered = np.random.default_rng(requests), dict.fromkeys(CASES, 0)
    bootstrap = Bootstrap(requests, seed=0)
    for _ in range(runs):
        found = cases(sampled(random, requests))
        asked = [(one.statistic, one.used_trials) for one in found.values()]
        for case, replicates in zip(found, bootstrap.replicate(asked, paired=False), strict=True):
            interval = replicates.interval()
            covered[case] += interval.low <= truth[case] <= interval.high
    print(requests, {case: round(count / runs, 3) for case, count in covered.items()})
    for case, count in covered.items():
        assert count / runs >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / runs), case


def test_a_linearized_interval_is_about_that_of_resamples() -> None:
    found = cases(sampled(np.random.default_rng(5), 400))
    asked = [(one.statistic, one.used_trials) for one in found.values()]
    for case, replicates in zip(found, Bootstrap(400, seed=0).replicate(asked, paired=False), strict=True):
        linear = linearize_all(found[case].statistic, found[case].used_trials).interval()
        resampled = replicates.interval()
        assert linear.high - linear.low == pytest.approx(resampled.high - resampled.low, rel=0.2), case
