"""The gate fails a model that is no worse as rarely as it says, in experiments with two equal models.

docs/concepts/interval-coverage.md has the table, from ``reports/gate/table.csv``.
"""

import csv

import numpy as np
import pytest

from benchmarks.gate import CSV, EACH, FIELDS, IMAGES, METRICS, NOMINAL, ONE, experiment, rates

RUNS, LAYERS = 60, 2


def error(share: float, runs: int) -> float:
    return float(np.sqrt(share * (1 - share) / runs))


@pytest.mark.slow
@pytest.mark.parametrize("num_images", IMAGES)
def test_the_gate_fails_equal_models_no_more_often_than_it_says(num_images: int) -> None:
    """Not above the nominal rate by more than four standard errors of so few experiments; families of their own are."""
    found = {
        (row["metric"], row["family"]): row["share"]
        for row in rates(num_images, runs=RUNS, layers=LAYERS, seed=1)
    }
    assert set(found) == {(metric, family) for metric in METRICS for family in (ONE, EACH)}
    for metric in METRICS:
        assert found[metric, ONE] <= NOMINAL + 4 * error(NOMINAL, RUNS)
        assert found[metric, EACH] >= found[metric, ONE]


def test_the_committed_rates_are_those_of_the_nominal_one() -> None:
    with CSV.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(FIELDS)
    assert {(row["metric"], row["family"], int(row["images"])) for row in rows} == {
        (metric, family, images) for metric in METRICS for family in (ONE, EACH) for images in IMAGES
    }
    for row in rows:
        runs, share = int(row["runs"]), float(row["share"])
        assert share == int(row["failed"]) / runs and float(row["nominal"]) == NOMINAL
        if row["family"] == ONE:
            assert abs(share - NOMINAL) <= 3 * error(NOMINAL, runs)


def test_an_experiment_is_the_same_each_time_and_counts_every_cell() -> None:
    """Two layers of five kinds of tokens; κ by three nulls, of which prefix tokens lack that within the image."""
    first = experiment(20, 3, layers=2)
    assert first == experiment(20, 3, layers=2)
    assert {(one.metric, one.family): one.cells for one in first} == {
        (metric, family): 2 * number
        for metric, number in zip(METRICS, (5, 14), strict=True)
        for family in (ONE, EACH)
    }
