"""The load of the experts, counted token by token."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from moeprobe.metrics.load import Load
from moeprobe.metrics.unserved import Unserved
from tests.routing.routings import aligned, routing


@pytest.mark.parametrize("padded", [False, True])
def test_first_choices_of_the_views_valid_patches(padded: bool) -> None:
    valid = torch.ones(4, 7, dtype=torch.bool)
    if padded:
        valid[0, 3:] = valid[2] = False
    layer = routing(4, top_k=1, seed=1, valid=valid, absent=0.3)
    load = Load().sums(aligned(routing(4, top_k=1), layer))["patch"]["load"]
    expected = torch.zeros(4, 5, dtype=torch.int64)
    for image in range(4):
        for token in range(1, 7):
            first = int(layer.selected[image, token, 0])
            if valid[image, token] and first >= 0:
                expected[image, first] += 1
    assert torch.equal(load, expected)
    assert load.dtype == torch.int64


def test_of_two_random_views_both_count_and_of_a_clean_reference_and_a_view_the_view() -> None:
    one, other = routing(4, top_k=1, seed=1, absent=0.3), routing(4, top_k=1, seed=2, absent=0.3)
    pair = aligned(one, other)
    both = dataclasses.replace(pair, symmetric=True)
    for analysis, name in ((Load(), "load"), (Unserved(), "unserved"), (Unserved(), "unserved_tokens")):
        for tokens, found in analysis.sums(both).items():
            alone = [analysis.sums(aligned(side, side))[tokens][name] for side in (one, other)]
            assert torch.equal(analysis.sums(pair)[tokens][name], alone[1])
            assert torch.equal(found[name], alone[0] + alone[1]) and (tokens == "prefix" or alone[0].any())


def test_the_entropy_is_that_of_the_pooled_load() -> None:
    # Either image collapsed, together two of four experts; of few images the entropy is not known as well.
    histogram = np.tile([[4, 0, 0, 0], [0, 4, 0, 0]], (5000, 1))
    metric = Load().estimators({"load": histogram}, aligned=False)[0]
    assert metric.name == "load_entropy"
    assert metric.trials.tolist() == [4] * 10_000
    entropy = metric.statistic.evaluate(np.ones((10_000, 1)))[0]
    assert entropy == pytest.approx(math.log(2) / math.log(4), abs=1e-4)


def test_it_applies_where_tokens_choose() -> None:
    layer = routing()
    assert Load().applies(layer)
    assert not Load().applies(dataclasses.replace(layer, selected=layer.selected[..., :0]))
    assert not Load().applies(routing(num_experts=1, top_k=1))
