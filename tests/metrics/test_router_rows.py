"""What rows of a router show: planted faults, an independent reference, and fresh routers of the package."""

import itertools
import math

import numpy as np
import pytest
import torch

from moeprobe.metrics.router_rows import (
    BAND,
    DRAWS,
    find_faults,
    leading_directions,
    measure_rows,
    untrained_bands,
)
from moeprobe.models.nn.routers.cosine_token_choice import CosineTokenChoice
from moeprobe.models.nn.routers.dense import Dense
from moeprobe.models.nn.routers.hash import Hash
from moeprobe.models.nn.routers.random_fixed import RandomFixed
from moeprobe.models.nn.routers.soft_moe import SoftMoe
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.routing.router_rows import Array, RouterRows, Start

EXPERTS, WIDTH = 6, 24


def sound(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(EXPERTS, WIDTH))


def router(rows: Array, **more: object) -> RouterRows:
    return RouterRows(rows, Start.lecun(rows.shape[1]), **more)  # type: ignore[arg-type]


def test_numbers_are_those_of_a_loop_over_rows() -> None:
    rows, embedding = sound(), np.random.default_rng(1).normal(size=(200, WIDTH)) * np.arange(1, WIDTH + 1)
    numbers = measure_rows(rows, leading_directions(embedding, EXPERTS))
    lengths = [math.sqrt(sum(value**2 for value in row)) for row in rows]
    assert (numbers.norm_low, numbers.norm_high) == (
        pytest.approx(min(lengths)),
        pytest.approx(max(lengths)),
    )
    cosines = {
        (i, j): float(rows[i] @ rows[j]) / lengths[i] / lengths[j]
        for i, j in itertools.combinations(range(EXPERTS), 2)
    }
    assert numbers.largest_cosine == pytest.approx(max(cosines.values()))
    assert find_faults(router(rows)).closest == max(cosines, key=lambda pair: cosines[pair])
    # Singular values, in place of the eigenvalues of products.
    values = np.linalg.svd(rows, compute_uv=False)
    shares = values / values.sum()
    assert numbers.effective_rank == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)))
    without = rows - rows.mean(0)
    assert numbers.common_share == pytest.approx(1 - (without**2).sum() / (rows**2).sum())
    # Of this embedding, the leading directions are nearly the last axes.
    _, _, directions = np.linalg.svd(embedding)
    along = ((rows @ directions[:EXPERTS].T) ** 2).sum() / (rows**2).sum()
    assert numbers.embedding_share == pytest.approx(along)


def test_a_sound_router_has_no_faults() -> None:
    faults = find_faults(router(sound(), bias=np.zeros(EXPERTS), top_k=2))
    assert (faults.zero, faults.parallel, faults.unreachable) == ((), (), ())


def test_a_zero_row_is_found() -> None:
    rows = sound()
    rows[4] = 0
    assert find_faults(router(rows)).zero == (4,)
    assert measure_rows(rows).norm_low == 0
    # Its direction is none: it takes part in no cosine.
    assert measure_rows(rows).largest_cosine == measure_rows(np.delete(rows, 4, 0)).largest_cosine


def test_parallel_rows_are_found_whatever_their_lengths() -> None:
    rows = sound()
    rows[5] = 3 * rows[2]
    faults = find_faults(router(rows))
    assert (faults.parallel, faults.closest) == (((2, 5),), (2, 5))
    rows[5] *= -1  # opposite is not parallel
    assert find_faults(router(rows)).parallel == ()


def test_a_router_of_rank_one_has_rank_one() -> None:
    rows = np.arange(1, EXPERTS + 1)[:, None] * sound()[:1]
    numbers = measure_rows(rows)
    assert numbers.effective_rank == pytest.approx(1, abs=1e-5)
    assert measure_rows(sound()).effective_rank > EXPERTS - 1  # type: ignore[operator]
    low, _ = untrained_bands(rows.shape, Start.lecun(WIDTH))["effective_rank"]
    assert numbers.effective_rank < low  # type: ignore[operator]


def test_rows_that_are_one_row_choose_nothing() -> None:
    assert measure_rows(np.tile(sound()[:1], (EXPERTS, 1))).common_share == pytest.approx(1)
    assert measure_rows(sound() - sound().mean(0)).common_share == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_bias_that_no_token_overcomes_is_found(top_k: int) -> None:
    rows, bias = sound(), np.zeros(EXPERTS)
    reach = max(
        np.linalg.norm(rows[i] - rows[j]) for i, j in itertools.combinations(range(EXPERTS), 2)
    ) * math.sqrt(WIDTH)
    bias[3] = -1.01 * reach
    assert find_faults(router(rows, bias=bias, top_k=top_k)).unreachable == (3,)
    # No token of the length that is drawn at random chooses it; and one does where the bias is within reach.
    tokens = np.random.default_rng(2).normal(size=(5000, WIDTH))
    tokens *= math.sqrt(WIDTH) / np.linalg.norm(tokens, axis=1, keepdims=True)
    chosen = np.argsort(-(tokens @ rows.T + bias), axis=1)[:, :top_k]
    assert 3 not in chosen
    # One expert that all others lose to is no fault of those others, while there is a second choice.
    bias[3] = 1.01 * reach
    others = tuple(expert for expert in range(EXPERTS) if expert != 3)
    assert find_faults(router(rows, bias=bias, top_k=top_k)).unreachable == (others if top_k == 1 else ())


def test_a_bias_of_gates_reaches_one() -> None:
    bias = np.array([0, 0, 0, 0, 0, -1.1])
    assert find_faults(router(sound(), bias=bias, is_bias_of_gates=True, top_k=2)).unreachable == (5,)
    assert find_faults(router(sound(), bias=bias * 0.8, is_bias_of_gates=True, top_k=2)).unreachable == ()


def test_an_embedding_that_fills_the_space_has_no_leading_directions() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, WIDTH))
    assert leading_directions(vectors, WIDTH) is None
    assert leading_directions(vectors[:3], 4) is None
    few = leading_directions(vectors[:10], 4)
    assert few is not None
    np.testing.assert_allclose(few @ few.T, np.eye(4), atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SoftmaxTokenChoice(WIDTH, EXPERTS),
        lambda: RandomFixed(WIDTH, EXPERTS),
        lambda: CosineTokenChoice(WIDTH, EXPERTS, projection_width=WIDTH),
        lambda: Dense(WIDTH, EXPERTS),
        lambda: SoftMoe(WIDTH, EXPERTS, num_tokens=9, slots=1),
    ],
    ids=["softmax", "fixed", "cosine", "dense", "soft"],
)
def test_bands_hold_as_many_fresh_routers_as_they_say(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    routers = [make().expert_rows() for _ in range(300)]
    bands = untrained_bands((EXPERTS, WIDTH), routers[0].start)
    fresh = [measure_rows(one.weight.detach().double().numpy(), np.eye(EXPERTS, WIDTH)) for one in routers]
    # The error of a share of fresh routers, and of the ends of a band that draws give.
    error = math.sqrt(BAND * (1 - BAND) * (1 / len(fresh) + 1 / DRAWS))
    for name, (low, high) in bands.items():
        share = np.mean([low <= one.plain()[name] <= high for one in fresh])  # type: ignore[operator]
        assert share == pytest.approx(BAND, abs=4 * error), name
    # A start that is a little larger lies outside.
    larger = Start(routers[0].start.law, 1.3 * routers[0].start.std)
    low, high = untrained_bands((EXPERTS, WIDTH), larger)["norm_median"]
    assert not low <= np.median([one.norm_median for one in fresh]) <= high


def test_a_hash_has_no_rows() -> None:
    assert Hash(WIDTH, EXPERTS).expert_rows() is None
