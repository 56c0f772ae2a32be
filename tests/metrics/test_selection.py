"""The margin of a token's set of experts, and the sum of its gates, token by token."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.inputs.regions import REGIONS
from moeprobe.metrics.analyses.confidence import ConfidenceAnalysis
from moeprobe.metrics.analyses.selection import SelectionAnalysis, logit_margins, selection_margins
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.routing.record import LayerRouting
from tests.routing.routings import aligned, expert_choice, routing, soft


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


def summed(layer: LayerRouting) -> tuple[float, int]:
    sums = SelectionAnalysis().sums(aligned(layer, layer))["patch"]
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
    found, tokens = summed(layer)
    assert tokens == 7 and found == pytest.approx(expected, rel=1e-9)
    assert found != pytest.approx(1.01 * expected, rel=1e-5)


def test_the_set_has_a_small_margin_where_the_first_choice_has_a_large_one() -> None:
    gates = np.array([[0.6, 0.201, 0.199, 0.0]])
    layer = with_choice(gates, np.array([[0, 1]]), gates=torch.tensor(gates[None]))
    assert summed(layer)[0] == pytest.approx(0.002, rel=1e-9)
    assert float(ConfidenceAnalysis().sums(aligned(layer, layer))["patch"]["gate_margin"]) == pytest.approx(
        0.399
    )


def test_a_choice_that_the_scores_do_not_explain_has_no_selection_margin() -> None:
    """Within groups of two experts the second best expert is not to be had."""
    scores = np.array([[4.0, 1.0, 3.0, 2.0], [4.0, 3.0, 1.0, 2.0], [4.0, 3.0, -np.inf, -np.inf]])
    layer = with_choice(scores, np.array([[0, 1]] * 3))
    assert summed(layer) == (1.0, 1)


@pytest.mark.parametrize(
    "changes",
    [{"top_k": 5}, {"every_gate": False}, {"has_scores": False}],
    ids=["all experts", "gates of chosen experts alone", "scores that are not here"],
)
def test_where_no_set_is_read_off_there_is_no_selection_margin(changes: dict[str, Any]) -> None:
    layer = routing(num_experts=5, **changes)
    assert selection_margins(layer) is None and logit_margins(layer) is None
    if layer.top_k < 5:
        assert "selection_margin" not in SelectionAnalysis().sums(aligned(layer, layer))["patch"]


def test_with_one_expert_per_token_the_two_highest_gates_are_enough() -> None:
    layer = routing(top_k=1)
    summary = dataclasses.replace(layer, every_gate=False)
    ordered = layer.gates.double().sort(descending=True).values
    torch.testing.assert_close(selection_margins(summary), ordered[..., 0] - ordered[..., 1])


def test_margins_in_logits_are_differences_of_logits() -> None:
    logits = np.random.default_rng(0).normal(scale=4, size=(6, 5))
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    layer = with_choice(gates, np.argsort(-logits)[:, :2], gates=torch.tensor(gates[None]))
    falling = np.sort(logits)[:, ::-1]
    found = logit_margins(dataclasses.replace(layer, scores=None))
    assert found is not None
    np.testing.assert_allclose(found[0].numpy(), falling[:, 1] - falling[:, 2], rtol=1e-9)
    assert logit_margins(layer) is None, "of biased scores there are no logits"
    coupled = dataclasses.replace(layer, scores=None, token_local=False)
    assert logit_margins(coupled) is None, "a transport plan is no softmax"


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_mass_of_the_set_by_a_loop(top_k: int) -> None:
    layer = routing(top_k=top_k, absent=0.3)
    sums = SelectionAnalysis().sums(aligned(layer, layer))["patch"]
    expected = [
        sum(float(layer.gates[b, t, e]) for t in range(1, 7) for e in layer.selected[b, t].tolist() if e >= 0)
        for b in range(3)
    ]
    assert sums["chosen_mass"].tolist() == pytest.approx(expected, rel=1e-6)
    assert sums["chosen_masses_counted"].tolist() == [6, 6, 6]
    gates_of_chosen = dataclasses.replace(layer, gates_sum_to_one=False)
    assert "chosen_mass" not in SelectionAnalysis().sums(aligned(gates_of_chosen, gates_of_chosen))["patch"]


def taken_by_experts(scores: np.ndarray, capacity: int) -> np.ndarray:
    """Which tokens ``(T, E)`` each expert takes."""
    taken = np.zeros(scores.shape, dtype=bool)
    for expert in range(scores.shape[1]):
        taken[np.argsort(-scores[:, expert], kind="stable")[:capacity], expert] = True
    return taken


def test_where_experts_choose_moving_a_score_by_the_margin_changes_the_set() -> None:
    layer = expert_choice(2, prefix=1, capacity=3)
    margins = selection_margins(layer)
    assert margins is not None
    for image in range(2):
        scores = layer.gates[image].double().numpy()
        before = taken_by_experts(scores, 3)
        assert (before == layer.selected_mask[image].numpy()).all()
        for token in range(7):
            margin = float(margins[image, token])
            changes = set()
            for factor in (0.999, 1.001):
                for expert in range(5):
                    for sign in (-1, 1):
                        moved = scores.copy()
                        moved[token, expert] += sign * factor * margin
                        if (taken_by_experts(moved, 3)[token] != before[token]).any():
                            changes.add(factor)
            assert changes == {1.001}
    assert selection_margins(dataclasses.replace(layer, group_images=2)) is None
    everyone = expert_choice(2, capacity=7)
    found = selection_margins(everyone)
    assert found is not None and found.isnan().all(), "without a cut-off no score changes a set"


def test_kinds_of_tokens_are_summed_apart() -> None:
    layer = routing(2, valid=torch.tensor([[True] * 7, [True] * 6 + [False]]))
    region = torch.tensor([[0, 1, 2, 0, 1, 2]]).expand(2, -1)
    pair = dataclasses.replace(aligned(layer, layer), region=region)
    sums = SelectionAnalysis().sums(pair)
    margins = selection_margins(layer)
    assert margins is not None and set(sums) == {"patch", "prefix", *REGIONS}
    for code, name in enumerate(REGIONS):
        of_region = margins[:, 1:].where(region == code, 0).nan_to_num(0).sum(1)
        torch.testing.assert_close(sums[name]["selection_margin"], of_region)
    assert sum(int(sums[name]["selection_margins_counted"].sum()) for name in REGIONS) == 11
    torch.testing.assert_close(sums["prefix"]["selection_margin"], margins[:, 0])


def test_it_applies_where_there_is_a_set() -> None:
    applies = SelectionAnalysis().applies
    assert applies(routing()) and applies(expert_choice()) and not applies(soft())
    assert not applies(routing(num_experts=2, top_k=2))
    assert applies(routing(gates_sum_to_one=False)), "sigmoid gates are read off as well"


def test_a_selection_margin_of_scores_may_be_above_1_and_so_may_its_interval() -> None:
    margins = np.random.default_rng(0).uniform(2, 6, 40)
    columns = {
        "selection_margins_counted": np.full(40, 1), "selection_margin": margins,
    }  # fmt: skip
    estimators = {metric.name: metric for metric in SelectionAnalysis().estimators(columns, aligned=True)}
    margin = estimators["selection_margin"]
    (resampled,) = Bootstrap(40, seed=0).replicate([(margin.statistic, margin.trials)])
    for replicates in (resampled, linearize_all(margin.statistic, margin.trials)):
        found = replicates.interval()
        assert found.value == pytest.approx(margins.mean())
        assert 1 < found.low < found.value < found.high < 6 and found.method != "score"
