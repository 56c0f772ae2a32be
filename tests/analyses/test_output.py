"""Accuracy and agreement, image by image."""

import math

import numpy as np
import pytest
import torch

from moeprobe.analyses.base import OutputPair
from moeprobe.analyses.output import Output


def values(pair: OutputPair) -> dict[str, tuple[float, int]]:
    arrays = {name: column.numpy() for name, column in Output().sums(pair).items()}
    everything = np.ones((len(pair.labels), 1))
    return {
        metric.name: (float(metric.statistic.evaluate(everything)[0]), int(metric.trials.sum()))
        for metric in Output().metrics(arrays, aligned=True)
    }


@pytest.mark.parametrize("unlabelled", [0, 4])
def test_by_a_loop(unlabelled: int) -> None:
    random = torch.Generator().manual_seed(0)
    reference, view = (torch.randn(40, 9, generator=random) for _ in range(2))
    labels = torch.randint(0, 9, (40,), generator=random)
    labels[:unlabelled] = -1
    view[:unlabelled, 0] = 9  # as if predicted as the first class
    correct = top5 = agreement = 0
    loss = 0.0
    for one, two, label in zip(reference.tolist(), view.tolist(), labels.tolist(), strict=True):
        agreement += one.index(max(one)) == two.index(max(two))
        if label >= 0:
            ranking = sorted(range(9), key=lambda c, scores=two: -scores[c])  # type: ignore[misc]
            correct += ranking[0] == label
            top5 += label in ranking[:5]
            loss -= two[label] - math.log(sum(math.exp(score) for score in two))
    count = 40 - unlabelled
    found = values(OutputPair(reference, view, labels))
    assert found["accuracy"] == (pytest.approx(correct / count), count)
    assert found["top5_accuracy"] == (pytest.approx(top5 / count), count)
    assert found["loss"] == (pytest.approx(loss / count, rel=1e-5), count)
    assert found["prediction_agreement"] == (pytest.approx(agreement / 40), 40)


def test_without_labels_only_agreement_is_said() -> None:
    scores = torch.randn(3, 9)
    assert values(OutputPair(scores, scores, torch.full((3,), -1))) == {"prediction_agreement": (1.0, 3)}


def test_among_five_of_five_everything_would_be_right() -> None:
    scores = torch.randn(3, 5)
    assert "top5_accuracy" not in values(OutputPair(scores, scores, torch.zeros(3, dtype=torch.long)))
    scores = torch.randn(3, 6)
    assert "top5_accuracy" in values(OutputPair(scores, scores, torch.zeros(3, dtype=torch.long)))
