"""Few-shot accuracy, chance and kappa, against loops over images and pairs of images."""

import itertools

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.fewshot import FewshotAnalysis
from moeprobe.metrics.base import Estimator, OutputPair
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from tests.results.stores import cells

CLASSES, IMAGES, DRAWS = 3, 14, 3


def measured(labels: torch.Tensor, scores: list[torch.Tensor]) -> dict[str, Estimator]:
    """What the draws, put together as a run does it, come to."""
    sums = Accumulator()
    for draw, of_draw in enumerate(scores, start=1):
        columns = FewshotAnalysis().sums(OutputPair(None, of_draw, labels))
        arrays = {name: column.numpy() for name, column in columns.items()}
        sums.add(Cell(draw=draw), [f"{row:02d}" for row in range(len(labels))], arrays)
    ((_, _, _, together),) = cells(
        of_table(image_table(sums, checkpoint="a")).pool_draws(lists=FewshotAnalysis.trial_lists)
    )
    return {metric.name: metric for metric in FewshotAnalysis().estimators(together, aligned=True)}


def test_against_plain_loops() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, CLASSES, (IMAGES,), generator=random)
    assert (labels < 0).any()
    # Every draw prefers another class, so that draws cannot be thrown together.
    scores = [
        torch.randn(IMAGES, CLASSES, generator=random) + 2.0 * (torch.arange(CLASSES) == draw)
        for draw in range(DRAWS)
    ]
    rows = [row for row in range(IMAGES) if labels[row] >= 0]
    predicted = [
        [max(range(CLASSES), key=lambda c: of[row, c].item()) for row in range(IMAGES)] for of in scores
    ]
    right = sum(of[row] == labels[row] for of in predicted for row in rows)
    pairs = [(one, other) for one, other in itertools.product(rows, rows) if one != other]
    by_chance = sum(labels[one].item() == of[other] for of in predicted for one, other in pairs)
    accuracy, chance = right / (DRAWS * len(rows)), by_chance / (DRAWS * len(pairs))
    found = measured(labels, scores)
    once = np.ones((IMAGES, 1))
    values = {name: metric.statistic.evaluate(once)[0] for name, metric in found.items()}
    assert values == {
        "fewshot_accuracy": pytest.approx(accuracy),
        "fewshot_accuracy_chance": pytest.approx(chance),
        "fewshot_accuracy_kappa": pytest.approx((accuracy - chance) / (1 - chance)),
    }
    expected = np.where(labels.numpy() >= 0, DRAWS, 0)
    assert all(np.array_equal(metric.trials, expected) for metric in found.values())
    assert {(name, metric.null) for name, metric in found.items()} == {
        ("fewshot_accuracy", ""), ("fewshot_accuracy_chance", "pooled"), ("fewshot_accuracy_kappa", "pooled"),
    }  # fmt: skip


def test_a_single_image_has_no_chance_level() -> None:
    found = measured(torch.tensor([-1, 1]), [torch.eye(2), torch.eye(2)])
    assert found["fewshot_accuracy"].trials.tolist() == [0, 2]
    assert (
        found["fewshot_accuracy_chance"].used_trials.sum()
        == found["fewshot_accuracy_kappa"].used_trials.sum()
        == 0
    )


def test_without_labels_there_is_nothing_to_say() -> None:
    assert measured(torch.tensor([-1, -1]), [torch.eye(2)]) == {}
