"""The confidence of a router, token by token."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.confidence import ConfidenceAnalysis
from tests.routing.routings import aligned, routing


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_means_over_tokens_by_a_loop(prefix: int, padded: bool) -> None:
    valid = torch.ones(3, prefix + 6, dtype=torch.bool)
    if padded:
        valid[0, -1] = valid[1, :] = False
    layer = routing(3, prefix=prefix, seed=1, valid=valid)
    layer.gates[~valid] = float("nan")  # whatever stands in padding
    sums = ConfidenceAnalysis().sums(aligned(routing(3, prefix=prefix), layer))
    assert set(sums) == ({"patch", "prefix"} if prefix else {"patch"})
    for tokens, columns in sums.items():
        arrays = {name: column.numpy() for name, column in columns.items()}
        metrics = {metric.name: metric for metric in ConfidenceAnalysis().estimators(arrays, aligned=True)}
        assert list(metrics) == [
            "gate_highest", "gate_second", "gate_rest", "gate_margin", "gate_entropy",
        ]  # fmt: skip
        own = range(prefix) if tokens == "prefix" else range(prefix, prefix + 6)
        rows = [sorted(layer.gates[b, t].tolist())[::-1] for b in range(3) for t in own if valid[b, t]]
        expected = {
            "gate_highest": sum(row[0] for row in rows),
            "gate_second": sum(row[1] for row in rows),
            "gate_rest": sum(sum(row[2:]) for row in rows),
            "gate_margin": sum(row[0] - row[1] for row in rows),
            "gate_entropy": sum(-sum(gate * math.log(gate) for gate in row) / math.log(5) for row in rows),
        }
        for name, total in expected.items():
            assert metrics[name].trials.sum() == len(rows)
            found = metrics[name].statistic.evaluate(np.ones((3, 1)))[0]
            assert found == pytest.approx(total / len(rows), rel=1e-6)


def test_two_experts_leave_no_rest() -> None:
    columns = ConfidenceAnalysis().sums(aligned(routing(num_experts=2), routing(num_experts=2)))["patch"]
    assert (columns["gate_rest"] >= 0).all() and (columns["gate_rest"] < 1e-5).all()


def test_the_entropy_of_gates_that_are_zero_even_and_half() -> None:
    """0 · ln 0 = 0; two of four experts alike have ln 2 / ln 4 = 1/2."""
    rows = [[0, 0, 1, 0], [0.25] * 4, [0.5, 0, 0, 0.5], [0.7, 0.1, 0.2, 0]]
    layer = routing(4, prefix=0, grid=(1, 1), num_experts=4)
    layer = dataclasses.replace(layer, gates=torch.tensor(rows)[:, None])
    sums = ConfidenceAnalysis().sums(aligned(layer, layer))["patch"]
    expected = [0, 1, 0.5, -sum(gate * math.log(gate) for gate in (0.7, 0.1, 0.2)) / math.log(4)]
    assert sums["gate_entropy"].tolist() == pytest.approx(expected, rel=1e-6)
    many = torch.full((4, 1, 4096), 1 / 4096) * (1 + 1e-6)  # as float32 gates may be rounded
    even = dataclasses.replace(layer, gates=many)
    assert (ConfidenceAnalysis().sums(aligned(even, even))["patch"]["gate_entropy"] <= 1).all()


def test_without_every_gate_there_is_no_entropy() -> None:
    layer = dataclasses.replace(routing(), every_gate=False)
    for columns in ConfidenceAnalysis().sums(aligned(layer, layer)).values():
        assert set(columns) == {"gate_highest", "gate_second", "gate_rest", "gate_margin", "tokens_counted"}


def test_runs_from_before_the_entropy_was_summed_have_the_rest() -> None:
    sums = ConfidenceAnalysis().sums(aligned(routing(), routing()))["patch"]
    old = {name: column.numpy() for name, column in sums.items() if name != "gate_entropy"}
    names = [one.name for one in ConfidenceAnalysis().estimators(old, aligned=True)]
    assert names == ["gate_highest", "gate_second", "gate_rest", "gate_margin"]


def test_it_applies_where_gates_are_a_distribution() -> None:
    assert ConfidenceAnalysis().applies(routing())
    assert not ConfidenceAnalysis().applies(dataclasses.replace(routing(), gates_sum_to_one=False))
    assert not ConfidenceAnalysis().applies(routing(num_experts=1, top_k=1))
