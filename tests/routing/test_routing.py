"""The order of choices belongs to the scores, not to the router."""

import dataclasses

import torch

from moeprobe.routing.record import RoutingTrace, join_batches, order_choices
from tests.routing.routings import routing


def order(selected: list[int], scores: list[float]) -> tuple[list[int], list[bool]]:
    """Sort one token's choices; the first choice handed in is the only one that was processed."""
    processed = [index == 0 for index in range(len(selected))]
    experts, kept = order_choices(
        torch.tensor([[selected]]), torch.tensor([[processed]]), torch.tensor([[scores]])
    )
    assert experts.dtype == torch.int16 and kept.dtype == torch.bool
    return experts[0, 0].tolist(), kept[0, 0].tolist()


def test_best_first_and_what_was_processed_moves_along() -> None:
    assert order([2, 0, 1], [0.1, 0.7, 0.2]) == ([1, 2, 0], [False, True, False])
    assert order([0, 1, 2], [0.1, 0.7, 0.2]) == ([1, 2, 0], [False, False, True])


def test_ties_go_to_the_lower_expert() -> None:
    assert order([3, 1, 2], [0.0, 0.5, 0.5, 0.5]) == ([1, 2, 3], [False, False, True])


def test_absent_choices_come_last() -> None:
    assert order([-1, 0, 2], [0.1, 0.7, 0.2]) == ([2, 0, -1], [False, False, True])
    assert order([-1, -1], [0.1, 0.7])[0] == [-1, -1]
    assert order([2, -1], [0.1, 0.7, -torch.inf]) == ([2, -1], [True, False])
    assert order([-1, 2], [0.1, 0.7, -torch.inf])[0] == [2, -1]


def test_any_order_of_the_router_gives_the_same() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 5, 8).round(decimals=0)
    selected = torch.rand(2, 5, 8).argsort(-1)[..., :3]
    processed = torch.rand(2, 5, 3) < 0.5
    expected = order_choices(selected, processed, scores)
    shuffled = torch.tensor([2, 0, 1])
    again = order_choices(selected[..., shuffled], processed[..., shuffled], scores)
    assert torch.equal(expected[0], again[0]) and torch.equal(expected[1], again[1])


def test_the_same_set_of_experts_whatever_their_order() -> None:
    layer = routing(1, top_k=2)
    selected, processed = layer.selected.clone(), layer.processed.clone()
    selected[0, 0] = selected[0, 0].flip(-1)  # Another order.
    processed[0, 1, 0] = False  # Dropped.
    selected[0, 2, 0], processed[0, 2, 0] = -1, False  # Never selected.
    other = dataclasses.replace(layer, selected=selected, processed=processed)
    assert layer.selects_the_same(other)[0].tolist() == [True, True, False, *[True] * 4]
    assert layer.processed_the_same(other)[0].tolist() == [True, False, False, *[True] * 4]


def test_what_was_computed_of_a_part_is_no_part_of_the_whole() -> None:
    parts = [RoutingTrace({"blocks.1": routing(num_images=number)}) for number in (2, 3)]
    weights = [part.layers["blocks.1"].weights for part in parts]
    whole = join_batches(parts).layers["blocks.1"]
    assert torch.equal(whole.weights, torch.cat(weights))
    assert whole.processed_mask.shape[0] == 5
