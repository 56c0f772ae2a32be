"""The confidence of a router, token by token."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.confidence import ConfidenceAnalysis
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.routing.record import LayerRouting
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
            "gate_highest", "gate_second", "gate_rest", "gate_margin", "gate_entropy", "selection_margin",
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
    new = ("gate_entropy", "selection_margin", "selection_margins_counted")
    old = {name: column.numpy() for name, column in sums.items() if name not in new}
    names = [one.name for one in ConfidenceAnalysis().estimators(old, aligned=True)]
    assert names == ["gate_highest", "gate_second", "gate_rest", "gate_margin"]


def with_choice(scores: np.ndarray, selected: np.ndarray, **more: Any) -> LayerRouting:
    """One image whose tokens have these scores ``(T, E)`` and experts ``(T, K)``."""
    num_tokens, num_experts = scores.shape
    layer = routing(
        1, prefix=0, grid=(1, num_tokens), num_experts=num_experts, top_k=selected.shape[1], seed=3
    )
    chosen = torch.tensor(selected[None], dtype=torch.int16)
    return dataclasses.replace(
        layer, scores=torch.tensor(scores[None]), selected=chosen, processed=chosen >= 0, **more
    )


def selection_margins(layer: LayerRouting) -> tuple[float, int]:
    sums = ConfidenceAnalysis().sums(aligned(layer, layer))["patch"]
    return float(sums["selection_margin"].sum()), int(sums["selection_margins_counted"].sum())


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("with_scores", [False, True])
def test_the_selection_margin_by_a_loop(top_k: int, with_scores: bool) -> None:
    """Scores as a bias of a router's choice makes them: another order than the gates'."""
    scores = np.random.default_rng(top_k).normal(size=(7, 5))
    gates = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    biased = scores + np.linspace(0, 2, 5)
    read = biased if with_scores else gates
    layer = with_choice(read, np.argsort(-read, axis=-1)[:, :top_k], gates=torch.tensor(gates[None]))
    if not with_scores:
        layer = dataclasses.replace(layer, scores=None)
    expected = 0.0
    for row in read:
        falling = sorted(row.tolist(), reverse=True)
        expected += falling[top_k - 1] - falling[top_k]
    found, tokens = selection_margins(layer)
    assert tokens == 7 and found == pytest.approx(expected, rel=1e-9)
    assert found != pytest.approx(1.01 * expected, rel=1e-5)


def test_the_set_has_a_small_margin_where_the_first_choice_has_a_large_one() -> None:
    gates = np.array([[0.6, 0.201, 0.199, 0.0]])
    layer = with_choice(gates, np.array([[0, 1]]), gates=torch.tensor(gates[None]))
    assert selection_margins(layer)[0] == pytest.approx(0.002, rel=1e-9)
    assert float(ConfidenceAnalysis().sums(aligned(layer, layer))["patch"]["gate_margin"]) == pytest.approx(
        0.399
    )


def test_a_choice_that_the_scores_do_not_explain_has_no_selection_margin() -> None:
    """Within groups of two experts the second best expert is not to be had."""
    scores = np.array([[4.0, 1.0, 3.0, 2.0], [4.0, 3.0, 1.0, 2.0], [4.0, 3.0, -np.inf, -np.inf]])
    layer = with_choice(scores, np.array([[0, 1]] * 3))
    assert selection_margins(layer) == (1.0, 1)


@pytest.mark.parametrize("change", ["all experts", "experts choose", "gates of chosen experts alone"])
def test_where_no_set_is_read_off_there_is_no_selection_margin(change: str) -> None:
    layer = routing(num_experts=5, top_k=5 if change == "all experts" else 2)
    if change == "experts choose":
        layer = dataclasses.replace(layer, experts_choose=True)
    if change == "gates of chosen experts alone":
        layer = dataclasses.replace(layer, every_gate=False)
    assert "selection_margin" not in ConfidenceAnalysis().sums(aligned(layer, layer))["patch"]


def test_it_applies_where_gates_are_a_distribution() -> None:
    assert ConfidenceAnalysis().applies(routing())
    assert not ConfidenceAnalysis().applies(dataclasses.replace(routing(), gates_sum_to_one=False))
    assert not ConfidenceAnalysis().applies(routing(num_experts=1, top_k=1))


def test_a_selection_margin_of_scores_may_be_above_1_and_so_may_its_interval() -> None:
    margins = np.random.default_rng(0).uniform(2, 6, 40)
    columns = {
        "tokens_counted": np.full(40, 1), "selection_margins_counted": np.full(40, 1),
        "gate_highest": np.full(40, 0.5), "selection_margin": margins,
    }  # fmt: skip
    estimators = {metric.name: metric for metric in ConfidenceAnalysis().estimators(columns, aligned=True)}
    margin = estimators["selection_margin"]
    (resampled,) = Bootstrap(40, seed=0).replicate([(margin.statistic, margin.trials)])
    for replicates in (resampled, linearize_all(margin.statistic, margin.trials)):
        found = replicates.interval()
        assert found.value == pytest.approx(margins.mean())
        assert 1 < found.low < found.value < found.high < 6 and found.method != "score"
