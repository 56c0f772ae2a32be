"""Intervals of the numbers on two forms hold the truth as often as they say, in experiments whose truth is known."""

from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.changed_margins import ChangedMargins, ReferenceMargins
from moeprobe.metrics.analyses.form_loss import FormLoss, FormLosses
from moeprobe.metrics.analyses.layer_growth import LayerGrowth
from moeprobe.metrics.analyses.touched import Differences
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.stats.bootstrap import Bootstrap

RUNS, TOKENS = 150, 24
NUMBERS = ("differ_growth", "margin_changed", "margin_ratio", "loss_gap", "loss_gap_routing_share")


def drawn(random: np.random.Generator, inputs: int) -> dict[str, Estimator]:
    """Inputs that differ in how many tokens change; those with small margins do, and lose more."""
    often = random.beta(2, 6, (inputs, 1))
    margin = random.exponential(0.1, (inputs, TOKENS)) * random.uniform(0.5, 1.5, (inputs, 1))
    changed = random.random((inputs, TOKENS)) < 2 * often * np.exp(-margin / 0.05)
    earlier = random.random((inputs, TOKENS)) < often / 3
    arithmetic = random.normal(0, 0.02, (inputs, TOKENS)) * random.uniform(0.5, 2, (inputs, 1))
    routing = random.normal(0, 0.1, (inputs, TOKENS)) * changed
    whole = [torch.from_numpy(one) for one in (0 * margin, arithmetic + routing, arithmetic, routing)]
    differs = torch.from_numpy(np.stack([earlier, changed]))
    asked: list[tuple[Any, Any]] = [
        (LayerGrowth(), Differences(differs, torch.ones(inputs, TOKENS, dtype=torch.bool))),
        (ChangedMargins(), ReferenceMargins(torch.from_numpy(margin), torch.from_numpy(changed))),
        (FormLoss(), FormLosses(*whole)),
    ]
    estimators: dict[str, Estimator] = {}
    for analysis, subject in asked:
        columns = {name: column.numpy() for name, column in analysis.sums(subject).items()}
        estimators |= {one.name: one for one in analysis.estimators(columns, aligned=True)}
    return estimators


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(40, marks=[pytest.mark.slow, pytest.mark.promise]),
        pytest.param(200, marks=pytest.mark.slow),
    ],
)
def test_intervals_hold_the_truth(inputs: int) -> None:
    random = np.random.default_rng(0)
    every, once = drawn(random, 60_000), np.ones((60_000, 1))
    truth = {name: float(every[name].statistic.evaluate(once)[0]) for name in NUMBERS}
    assert truth["margin_ratio"] < 0.6 and 0.1 < truth["loss_gap_routing_share"] < 0.9
    held: dict[str, list[bool]] = {name: [] for name in NUMBERS}
    for run in range(RUNS):
        world = drawn(random, inputs)
        estimators = [world[name] for name in NUMBERS]
        replicates = Bootstrap(inputs, seed=run, num_resamples=300).replicate(
            [(one.statistic, one.trials) for one in estimators]
        )
        for name, one in zip(NUMBERS, replicates, strict=True):
            estimate = one.interval()
            # Where few inputs carry a mean, there is no interval that could miss the truth.
            assert estimate.flag in ("", "few_carriers"), (name, estimate)
            if not estimate.flag:
                held[name].append(estimate.low <= truth[name] <= estimate.high)
    print(inputs, {name: (np.mean(hits), len(hits)) for name, hits in held.items()})
    for name, hits in held.items():
        assert len(hits) > RUNS / 4, name
        # By chance, one of 95 % falls so low once in a thousand times.
        assert np.mean(hits) >= 0.95 - 3.1 * np.sqrt(0.95 * 0.05 / len(hits)), (name, np.mean(hits))
