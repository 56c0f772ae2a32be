"""Intervals hold the truth as often as they say, in experiments whose truth is known.

docs/concepts/interval-coverage.md has the table.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage import IMAGES, LINEARIZED, WORLDS, coverage, table
from moeprobe.metrics.stats.load import Entropy
from moeprobe.metrics.stats.statistic import Ratio

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "interval-coverage.md"
RUNS, RESAMPLES = 120, 300


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str], list[float]]:
    return coverage(runs=RUNS, resamples=RESAMPLES, seed=1)


def error(share: float, runs: int) -> float:
    return float(np.sqrt(share * (1 - share) / runs))


@pytest.mark.slow
def test_every_interval_covers(measured: dict[tuple[str, str], list[float]]) -> None:
    """No number is covered less than 92 times in 100, as far as these experiments tell, and all together more often."""
    print(table(measured))
    for key, shares in measured.items():
        assert min(shares) >= 0.9 - 3 * error(0.9, RUNS), key
        assert np.mean(shares) >= 0.92 - 3 * error(0.92, 3 * RUNS), key
    for number in {number for _, number in measured}:
        found = [share for (_, name), shares in measured.items() if name == number for share in shares]
        assert np.mean(found) >= 0.92, number


@pytest.fixture(scope="module")
def linearized() -> dict[tuple[str, str], list[float]]:
    """Without the most images, which take minutes."""
    return coverage(runs=RUNS, resamples=0, seed=1, images=LINEARIZED[:-1], linear=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_tables_of_the_page_are_those_of_the_experiments(
    number: int,
    measured: dict[tuple[str, str], list[float]],
    linearized: dict[tuple[str, str], list[float]],
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    runs = int(re.findall(r"([\d,]+)\s+experiments each", text)[number].replace(",", ""))
    part = text.split("| what is drawn | number |")[1 + number]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.split("\n\n")[0].splitlines()[2:]
    ]
    written = {(world, number): [float(share) for share in shares] for world, number, *shares in rows}
    experiments = (measured, linearized)[number]
    assert written.keys() == experiments.keys()
    for key, shares in written.items():
        for share, again in zip(shares, experiments[key], strict=number == 0):
            # The chance that one of a hundred is further apart is 1 %.
            expected = (share * runs + again * RUNS) / (runs + RUNS)
            assert abs(share - again) <= 4 * np.hypot(error(expected, runs), error(expected, RUNS)) + 1e-3, (
                key
            )


@pytest.mark.slow
def test_linearized_intervals_cover(linearized: dict[tuple[str, str], list[float]]) -> None:
    """Of 2,000 images every number but those at their end; of fewer at least as often as resamples are held to."""
    print(table(linearized, images=LINEARIZED[:-1]))
    for (world, number), shares in linearized.items():
        at_its_end = world.startswith("even load") and number in ("chance, pooled", "load entropy")
        if not at_its_end:
            assert shares[-1] >= 0.93 - 3 * error(0.93, RUNS), (world, number)
            assert np.mean(shares) >= 0.91 - 3 * error(0.91, 3 * RUNS), (world, number)


def test_without_the_corrections_the_truth_is_missed() -> None:
    """What the experiments would have said of the plain entropy: 100 of 20 images whose patches prefer few experts."""
    world, rng = WORLDS["stable 0.5, images differ"], np.random.default_rng(0)
    truth, once = world.truth()["load entropy"], np.ones((IMAGES[0], 1))
    errors = []
    for _ in range(100):
        entropy = world.draw(rng, IMAGES[0])["load entropy"]
        assert isinstance(entropy, Entropy)
        share = entropy.histogram.sum(0) / entropy.histogram.sum()
        share = share[share > 0]
        plain = -(share * np.log(share)).sum() / np.log(entropy.histogram.shape[1])
        errors.append((plain - truth, entropy.evaluate(once)[0] - truth))
    plain, corrected = np.mean(errors, axis=0)
    assert plain < -0.02 and abs(corrected) < 0.5 * abs(plain)


def test_an_even_simulation_knows_its_own_truth() -> None:
    """The truths of the experiments' formulas are what 40,000 images come to."""
    rng, once = np.random.default_rng(2), np.ones((40_000, 1))
    for name, world in WORLDS.items():
        truth = world.truth()
        for number, statistic in world.draw(rng, 40_000).items():
            found = statistic.evaluate(once)[0]
            assert found == pytest.approx(truth[number], abs=0.01), (name, number)
            assert not isinstance(statistic, Ratio) or np.isfinite(statistic.influence()).all()
