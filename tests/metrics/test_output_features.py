"""Cosine of features: by a loop, where it has no value, and how often its interval holds the truth."""

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.output_features import OutputFeatures
from moeprobe.metrics.base import OutputPair
from moeprobe.metrics.stats.bootstrap import Bootstrap


def test_by_a_loop() -> None:
    random = torch.Generator().manual_seed(0)
    reference, view = (torch.randn(30, 7, generator=random) for _ in range(2))
    view += reference
    view[3] = 0  # no direction
    view[4, 0] = torch.nan
    columns = {
        name: column.numpy()
        for name, column in OutputFeatures().sums(OutputPair(reference, view, torch.zeros(30))).items()
    }
    expected = [
        0.0 if row in (3, 4) else float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))
        for row, (a, b) in enumerate(zip(reference.double().numpy(), view.double().numpy(), strict=True))
    ]
    np.testing.assert_allclose(columns["output_cosine"], expected, atol=1e-12)
    (estimator,) = OutputFeatures().estimators(columns, aligned=True)
    assert float(estimator.statistic.evaluate(np.ones((30, 1)))[0]) == pytest.approx(sum(expected) / 28)
    assert estimator.trials is not None and estimator.trials.sum() == 28
    alone = OutputFeatures().sums(OutputPair(None, view, torch.zeros(30)))
    assert list(alone) == ["compared_outputs"] and not alone["compared_outputs"].any()
    assert OutputFeatures().estimators({"compared_outputs": np.zeros(30, np.int64)}, aligned=True) == []


@pytest.mark.parametrize("num_images", [40, 200, 1000])
def test_intervals_cover(num_images: int) -> None:
    """Cosines near 1 with a tail to the left, as features under little noise have them: 240 experiments each."""
    runs, held = 240, 0
    rng = np.random.default_rng(num_images)
    bootstrap = Bootstrap(num_images, seed=0, num_resamples=300)
    for _ in range(runs):
        columns = {
            "output_cosine": 1 - rng.beta(1, 12, num_images),
            "compared_outputs": np.ones(num_images, np.int64),
        }
        (estimator,) = OutputFeatures().estimators(columns, aligned=True)
        (replicates,) = bootstrap.replicate([(estimator.statistic, columns["compared_outputs"])])
        interval = replicates.interval()
        held += bool(interval.low <= 1 - 1 / 13 <= interval.high)
    # As all intervals of resamples: of few images they cover a little less (docs/concepts/interval-coverage.md).
    assert held / runs >= 0.92 - 3 * np.sqrt(0.92 * 0.08 / runs), held / runs
    assert held / runs <= 0.99
