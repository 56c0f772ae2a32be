"""Accuracy and agreement, image by image."""

import math

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.output import Output
from moeprobe.metrics.base import OutputPair


def values(pair: OutputPair) -> dict[str, tuple[float, int]]:
    arrays = {name: column.numpy() for name, column in Output().sums(pair).items()}
    everything = np.ones((len(pair.labels), 1))
    return {
        metric.name: (float(metric.statistic.evaluate(everything)[0]), int(metric.trials.sum()))
        for metric in Output().estimators(arrays, aligned=True)
    }


@pytest.mark.parametrize("unlabeled", [0, 4])
def test_by_a_loop(unlabeled: int) -> None:
    random = torch.Generator().manual_seed(0)
    reference, view = (torch.randn(40, 9, generator=random) for _ in range(2))
    labels = torch.randint(0, 9, (40,), generator=random)
    labels[:unlabeled] = -1
    view[:unlabeled, 0] = 9  # as if predicted as the first class
    correct = top5 = agreement = 0
    loss = 0.0
    for one, two, label in zip(reference.tolist(), view.tolist(), labels.tolist(), strict=True):
        agreement += one.index(max(one)) == two.index(max(two))
        if label >= 0:
            ranking = sorted(range(9), key=lambda c, scores=two: -scores[c])  # type: ignore[misc]
            correct += ranking[0] == label
            top5 += label in ranking[:5]
            loss -= two[label] - math.log(sum(math.exp(score) for score in two))
    count = 40 - unlabeled
    found = values(OutputPair(reference, view, labels))
    assert found["accuracy"] == (pytest.approx(correct / count), count)
    assert found["top5_accuracy"] == (pytest.approx(top5 / count), count)
    assert found["loss"] == (pytest.approx(loss / count, rel=1e-5), count)
    assert found["prediction_agreement"] == (pytest.approx(agreement / 40), 40)


@pytest.mark.parametrize("levels", [1, 3])
def test_ties_go_to_the_lower_class_and_not_to_the_right_one(levels: int) -> None:
    """Equal scores of all classes are the answer 0, and classes 0 to 4 are the five best."""
    random = torch.Generator().manual_seed(levels)
    view = torch.randint(levels, (60, 9), generator=random).float()
    labels = torch.arange(60) % 9
    ranking = [sorted(range(9), key=lambda c, scores=row: (-scores[c], c)) for row in view.tolist()]  # type: ignore[misc]
    found = values(OutputPair(None, view, labels))
    pairs = list(zip(ranking, labels.tolist(), strict=True))
    assert found["accuracy"][0] == pytest.approx(np.mean([ranked[0] == label for ranked, label in pairs]))
    assert found["top5_accuracy"][0] == pytest.approx(
        np.mean([label in ranked[:5] for ranked, label in pairs])
    )
    assert found["top5_accuracy"][0] < 0.8


def test_scores_without_a_highest_one_are_no_answer() -> None:
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    spoiled = scores.clone()
    spoiled[0, 3], spoiled[1], spoiled[2, 0], spoiled[3, 1:] = torch.nan, torch.nan, torch.inf, -torch.inf
    labels = torch.zeros(6, dtype=torch.long)
    for pair in (OutputPair(scores, spoiled, labels), OutputPair(spoiled, scores, labels)):
        found = values(pair)
        assert found["prediction_agreement"] == (pytest.approx((int(scores[3].argmax() == 0) + 2) / 3), 3)
        assert found["accuracy"][1] == (3 if pair.view is spoiled else 6)
        assert math.isfinite(found["loss"][0])


def test_without_labels_only_agreement_is_said() -> None:
    scores = torch.randn(3, 9)
    assert values(OutputPair(scores, scores, torch.full((3,), -1))) == {"prediction_agreement": (1.0, 3)}


def test_among_five_of_five_everything_would_be_right() -> None:
    scores = torch.randn(3, 5)
    assert "top5_accuracy" not in values(OutputPair(scores, scores, torch.zeros(3, dtype=torch.long)))
    scores = torch.randn(3, 6)
    assert "top5_accuracy" in values(OutputPair(scores, scores, torch.zeros(3, dtype=torch.long)))
