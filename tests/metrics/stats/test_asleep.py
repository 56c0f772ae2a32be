"""Experts that requests never use: against loops over requests and experts."""

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe.metrics.stats.asleep import AsleepExcess, IndependentAsleep, ObservedAsleep
from tests.metrics.stats.trials import derivatives

REQUESTS, EXPERTS = 9, 6
Array = NDArray[np.float64]


def requests(seed: int = 0) -> tuple[Array, Array]:
    """Uses ``(n, E)`` and tokens ``(n,)``; one request has no token, and nobody uses the last expert."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 6, REQUESTS).astype(float)
    tokens[3] = 0
    uses = rng.binomial(tokens[:, None].astype(int), [0.9, 0.5, 0.3, 0.1, 0.1, 0.0]).astype(float)
    return uses, tokens


def never_used(uses: Array, tokens: Array, weight: Array) -> float:
    """The mean over requests of how many experts it does not use, of those that any drawn request uses."""
    counted = [at for at in range(REQUESTS) if tokens[at] > 0 and weight[at] > 0]
    alive = [expert for expert in range(EXPERTS) if any(uses[at, expert] > 0 for at in counted)]
    asleep = sum(weight[at] * sum(uses[at, expert] == 0 for expert in alive) for at in counted)
    return float(asleep / sum(weight[at] for at in counted))


def missed(uses: Array, tokens: Array, weight: Array) -> float:
    """The mean over requests of how many used experts as many independent tokens miss."""
    shares = weight @ uses / (weight @ tokens)
    counted = [at for at in range(REQUESTS) if tokens[at] > 0]
    total = sum(
        weight[at] * (1 - shares[expert]) ** tokens[at]
        for at in counted
        for expert in range(EXPERTS)
        if shares[expert] > 0
    )
    return float(total / sum(weight[at] for at in counted))


def test_numbers_are_those_of_loops() -> None:
    uses, tokens = requests()
    weights = np.random.default_rng(1).integers(0, 3, (REQUESTS, 8)).astype(float)
    observed, independent = ObservedAsleep(uses, tokens), IndependentAsleep(uses, tokens)
    of_loops = np.array([[of(uses, tokens, weight) for weight in weights.T] for of in (never_used, missed)])
    assert observed.evaluate(weights) == pytest.approx(of_loops[0])
    assert independent.evaluate(weights) == pytest.approx(of_loops[1])
    excess = AsleepExcess(observed, independent)
    assert excess.evaluate(weights) == pytest.approx(of_loops[0] - of_loops[1])
    assert len(set(of_loops[0].round(6))) > 4, "weights that change something"


def test_influences_are_derivatives() -> None:
    observed, independent = ObservedAsleep(*requests(2)), IndependentAsleep(*requests(2))
    for statistic in (observed, independent, AsleepExcess(observed, independent)):
        assert statistic.influence() == pytest.approx(derivatives(statistic, REQUESTS), abs=1e-7)
        assert np.abs(statistic.influence()).max() > 0.01
    # An expert that all tokens use: no token misses it, and a request more moves that by nothing.
    everywhere = np.ones((3, 1)) * np.array([1.0, 2.0, 3.0])[:, None]
    assert IndependentAsleep(everywhere, everywhere[:, 0]).influence().tolist() == [0, 0, 0]
