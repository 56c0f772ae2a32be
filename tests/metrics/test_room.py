"""Choices without room, and experts per token, counted token by token."""

import dataclasses

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.buffer_fill import BufferFill
from moeprobe.metrics.analyses.dropped import Dropped
from moeprobe.metrics.analyses.experts_per_token import ExpertsPerToken
from moeprobe.routing.record import LayerRouting
from tests.routing.routings import aligned, expert_choice, routing


def full(seed: int) -> LayerRouting:
    """Some choices are absent, some find no room, some tokens are padding."""
    random = torch.Generator().manual_seed(seed)
    valid = torch.rand(4, 7, generator=random) < 0.8
    layer = routing(4, seed=seed, absent=0.3, valid=valid)
    room = torch.rand(layer.selected.shape, generator=random) < 0.7
    return dataclasses.replace(layer, processed=layer.processed & room)


@pytest.mark.parametrize("symmetric", [False, True])
def test_choices_without_room_by_a_loop(symmetric: bool) -> None:
    sides = full(1), full(2)
    pair = dataclasses.replace(aligned(*sides), symmetric=symmetric)
    columns = {name: column.numpy() for name, column in Dropped().sums(pair)["patch"].items()}
    (metric,) = Dropped().estimators(columns, aligned=True)
    choices = dropped = 0
    for layer in sides if symmetric else sides[1:]:
        for image in range(4):
            for token in range(1, 7):
                for choice in range(2):
                    if layer.valid[image, token] and layer.selected[image, token, choice] >= 0:
                        choices += 1
                        dropped += not layer.processed[image, token, choice]
    assert 0 < dropped < choices == metric.trials.sum()
    assert metric.statistic.evaluate(np.ones((4, 1)))[0] == pytest.approx(dropped / choices)


@pytest.mark.parametrize("capacity", [1, 3, 5])
def test_experts_per_token_by_a_loop(capacity: int) -> None:
    valid = torch.rand(4, 7, generator=torch.Generator().manual_seed(0)) < 0.8
    layer = expert_choice(4, seed=1, capacity=capacity, valid=valid)
    sums = ExpertsPerToken().sums(aligned(expert_choice(4), layer))["patch"]
    columns = {name: column.numpy() for name, column in sums.items()}
    found = {
        one.name: one.statistic.evaluate(np.ones((4, 1)))[0]
        for one in ExpertsPerToken().estimators(columns, aligned=True)
    }
    numbers = [
        sum(int(expert) >= 0 for expert in layer.selected[image, token])
        for image in range(4)
        for token in range(1, 7)
        if valid[image, token]
    ]
    expected = {f"experts_per_token_{n}": np.mean([number == n for number in numbers]) for n in range(3)}
    expected["experts_per_token_3_or_more"] = np.mean([number > 2 for number in numbers])
    expected["experts_per_token"] = np.mean(numbers)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("symmetric", [False, True])
def test_places_taken_by_a_loop(symmetric: bool) -> None:
    # Groups of two images: 5 experts with room for 3 of a group each.
    sides = [dataclasses.replace(full(seed), places=torch.full((4,), 7.5)) for seed in (1, 2)]
    pair = dataclasses.replace(aligned(*sides), symmetric=symmetric)
    columns = {name: column.numpy() for name, column in BufferFill().sums(pair)["patch"].items()}
    (metric,) = BufferFill().estimators(columns, aligned=True)
    read = sides if symmetric else sides[1:]
    taken = sum(
        int(layer.processed[image, token, choice] and layer.selected[image, token, choice] >= 0)
        for layer in read
        for image in range(4)
        for token in range(7)
        for choice in range(2)
    )
    assert taken > 0
    assert metric.statistic.evaluate(np.ones((4, 1)))[0] == pytest.approx(taken / (len(read) * 30))


def test_an_image_that_is_left_out_has_no_places() -> None:
    side = dataclasses.replace(full(1), places=torch.full((4,), 7.5))
    whole = BufferFill().sums(aligned(side, side))["patch"]
    left_out = dataclasses.replace(side, valid=side.valid & (torch.arange(4) != 2)[:, None])
    found = BufferFill().sums(aligned(left_out, left_out))["patch"]
    for name, column in found.items():
        assert whole[name][2] > 0 and column[2] == 0
        assert column[[0, 1, 3]].equal(whole[name][[0, 1, 3]])


def test_each_where_it_applies() -> None:
    limited = routing(places=torch.ones(3))
    assert BufferFill().applies(limited) and not BufferFill().applies(routing())
    assert not BufferFill().applies(dataclasses.replace(expert_choice(), places=torch.ones(3)))
    assert Dropped().applies(routing()) and not Dropped().applies(expert_choice())
    assert ExpertsPerToken().applies(expert_choice()) and not ExpertsPerToken().applies(routing())
