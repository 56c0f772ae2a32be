"""What is read first: with several experts per token, their set beside the first choice."""

from collections.abc import Mapping, Sequence

import pytest

from moeprobe.metrics.registry import compared_along_severities, compared_first, set_match

TWO = ("top1_match", "top2_match", "top2_set_match")
FIVE = (*TWO, "top5_match", "top5_set_match")
ONE = ("top1_match",)


@pytest.mark.parametrize(
    ("metrics", "sets"),
    [
        ({"a": ONE, "b": ONE}, ""),
        ({"a": TWO, "b": TWO}, "top2_set_match"),
        ({"a": FIVE}, "top5_set_match"),
        ({"a": TWO, "b": FIVE}, ""),  # sets of different sizes
        ({"a": ONE, "b": TWO}, ""),
        ({"a": (*TWO, "top3_match")}, ""),  # three of three experts are one set
        ({"a": ("top8_set_match",)}, "top8_set_match"),  # recorded without an order
        ({"a": TWO, "b": ("load_entropy",)}, "top2_set_match"),  # of a single expert nothing agrees
        ({"a": TWO, "b": ("slot_match",)}, ""),
        ({}, ""),
    ],
)
def test_the_set_that_processes_a_token(metrics: Mapping[str, Sequence[str]], sets: str) -> None:
    assert set_match((name, metric) for name, own in metrics.items() for metric in own) == sets


def test_both_are_compared_and_with_one_expert_nothing_is_added() -> None:
    alone, both = compared_first("top1_match"), compared_first("top1_match", "top2_set_match")
    added = {
        ("top2_set_match_kappa", "pooled"), ("top2_set_match_kappa", "image"), ("top2_set_match", ""),
    }  # fmt: skip
    assert set(both) - set(alone) == added and set(alone) < set(both)
    assert compared_along_severities("top1_match", "top2_set_match")[:2] == (
        "top2_set_match_kappa",
        "top1_match_kappa",
    )
