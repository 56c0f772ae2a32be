"""The load of the experts, counted token by token."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.load import LoadAnalysis
from moeprobe.metrics.analyses.unserved import Unserved
from tests.routing.routings import aligned, routing


@pytest.mark.parametrize("padded", [False, True])
def test_first_choices_of_the_views_valid_patches(padded: bool) -> None:
    valid = torch.ones(4, 7, dtype=torch.bool)
    if padded:
        valid[0, 3:] = valid[2] = False
    layer = routing(4, top_k=1, seed=1, valid=valid, absent=0.3)
    load = LoadAnalysis().sums(aligned(routing(4, top_k=1), layer))["patch"]["load"]
    expected = torch.zeros(4, 5, dtype=torch.int64)
    for image in range(4):
        for token in range(1, 7):
            first = int(layer.selected[image, token, 0])
            if valid[image, token] and first >= 0:
                expected[image, first] += 1
    assert torch.equal(load, expected)
    assert load.dtype == torch.int64


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_all_choices_by_a_loop(top_k: int) -> None:
    layer = routing(4, top_k=top_k, seed=1, absent=0.3)
    sums = LoadAnalysis().sums(aligned(layer, layer))["patch"]
    if top_k == 1:
        assert set(sums) == {"load"}  # the first choices are all there are
        return
    expected = np.zeros((4, 5), dtype=int)
    for image in range(4):
        for token in range(1, 7):
            for expert in layer.selected[image, token].tolist():
                expected[image, expert] += expert >= 0
    assert sums["load_any"].tolist() == expected.tolist()


def test_shares_of_the_first_and_of_all_choices() -> None:
    first, every = np.array([[3, 1, 0], [1, 0, 1]]), np.array([[4, 4, 0], [1, 0, 3]])
    found = {
        (one.name, one.expert): one
        for one in LoadAnalysis().estimators({"load": first, "load_any": every}, aligned=False)
    }
    for name, loads in (("expert_share_first", first), ("expert_share", every)):
        for expert in range(3):
            one = found[name, expert]
            assert one.trials.tolist() == loads.sum(1).tolist()
            assert one.statistic.evaluate(np.array([[1.0], [2.0]]))[0] == pytest.approx(
                (loads[0, expert] + 2 * loads[1, expert]) / (loads[0].sum() + 2 * loads[1].sum())
            )
    alone = {one.name for one in LoadAnalysis().estimators({"load": first}, aligned=False)}
    assert alone == {"load_entropy", "dead_experts", "expert_share"}
    assert {name for name, _ in found} == alone | {f"{name}_first" for name in alone}


def test_an_expert_is_dead_below_a_tenth_of_an_even_share() -> None:
    """Of 4 experts, 1/40: 25 of 1,000 first choices are alive, 24 are not."""
    columns = {"load": np.array([[500, 451, 25, 24]])}
    (dead,) = (one for one in LoadAnalysis().estimators(columns, aligned=False) if one.name == "dead_experts")
    assert dead.expert is None and dead.trials.tolist() == [1000]
    assert dead.statistic.evaluate(np.ones((1, 1))).tolist() == [1]


def test_of_two_random_views_both_count_and_of_a_clean_reference_and_a_view_the_view() -> None:
    one, other = routing(4, top_k=1, seed=1, absent=0.3), routing(4, top_k=1, seed=2, absent=0.3)
    pair = aligned(one, other)
    both = dataclasses.replace(pair, symmetric=True)
    for analysis, name in (
        (LoadAnalysis(), "load"),
        (Unserved(), "unserved"),
        (Unserved(), "unserved_tokens"),
    ):
        for tokens, found in analysis.sums(both).items():
            alone = [analysis.sums(aligned(side, side))[tokens][name] for side in (one, other)]
            assert torch.equal(analysis.sums(pair)[tokens][name], alone[1])
            assert torch.equal(found[name], alone[0] + alone[1]) and (tokens == "prefix" or alone[0].any())


def test_the_entropy_is_that_of_the_pooled_load() -> None:
    # Either image collapsed, together two of four experts; of few images the entropy is not known as well.
    histogram = np.tile([[4, 0, 0, 0], [0, 4, 0, 0]], (5000, 1))
    metric = LoadAnalysis().estimators({"load": histogram}, aligned=False)[0]
    assert metric.name == "load_entropy"
    assert metric.trials.tolist() == [4] * 10_000
    entropy = metric.statistic.evaluate(np.ones((10_000, 1)))[0]
    assert entropy == pytest.approx(math.log(2) / math.log(4), abs=1e-4)


def test_it_applies_where_tokens_choose() -> None:
    layer = routing()
    assert LoadAnalysis().applies(layer)
    assert not LoadAnalysis().applies(dataclasses.replace(layer, selected=layer.selected[..., :0]))
    assert not LoadAnalysis().applies(routing(num_experts=1, top_k=1))
