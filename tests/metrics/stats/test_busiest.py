"""The busiest experts of other folds: against a loop over folds and layers, and the derivative."""

import numpy as np
import pytest

from moeprobe.metrics.stats import busiest
from moeprobe.metrics.stats.busiest import NUM_FOLDS, BusiestElsewhere
from tests.metrics.stats.trials import derivatives

INPUTS, LAYERS, EXPERTS, NUMBER = 12, 2, 5, 2


@pytest.mark.parametrize("units", [False, True])
def test_hits_are_those_of_experts_chosen_elsewhere(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    uses = rng.gamma(0.5, 5, (INPUTS, LAYERS, EXPERTS))
    unit = np.repeat(np.arange(INPUTS // 2), 2) if units else None
    fold = (np.arange(INPUTS) if unit is None else unit) % NUM_FOLDS
    statistic = BusiestElsewhere(uses, NUMBER, unit)
    weights = rng.integers(1, 4, (INPUTS, 6)).astype(float)
    expected = []
    for weight in weights.T:
        hits = 0.0
        for one in range(INPUTS):
            for layer in range(LAYERS):
                elsewhere = sum(
                    weight[other] * uses[other, layer] for other in range(INPUTS) if fold[other] != fold[one]
                )
                for expert in sorted(range(EXPERTS), key=lambda e: -elsewhere[e])[:NUMBER]:
                    hits += weight[one] * uses[one, layer, expert]
        expected.append(hits / (weight @ uses.sum((1, 2))))
    assert statistic.evaluate(weights) == pytest.approx(expected)
    monkeypatch.setattr(busiest, "LOADS_AT_ONCE", 2 * LAYERS * EXPERTS)
    assert statistic.evaluate(weights) == pytest.approx(expected), "in parts of two resamples"
    assert statistic.influence() == pytest.approx(derivatives(statistic, INPUTS), abs=1e-7)
