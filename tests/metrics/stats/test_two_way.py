"""Crossed samples: what the interval covers in worlds where seeds or images dominate, and what others cover."""

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.stats.two_way import TwoWay

# Standard deviations of the effect of a training, of an image, and of both.
WORLDS = {
    "seeds": (0.05, 0.2, 0.2),
    "images": (0.005, 0.6, 0.2),
    "both": (0.04, 0.6, 0.2),
    "neither": (0.02, 0.2, 0.3),
}


def draw(rng: np.random.Generator, world: str, pairs: int, images: int) -> np.ndarray:
    of_seed, of_image, of_cell = WORLDS[world]
    seeds, columns = rng.standard_normal((pairs, 1)), rng.standard_normal((1, images))
    return of_seed * seeds + of_image * columns + of_cell * rng.standard_normal((pairs, images))


def test_the_variance_by_loops() -> None:
    differences = draw(np.random.default_rng(0), "both", 4, 30) + 0.1 * np.arange(4)[:, None]
    means = [sum(row) / 30 for row in differences]
    columns = [sum(differences[:, image]) / 4 for image in range(30)]
    center = sum(means) / 4
    of_seeds = sum((mean - center) ** 2 for mean in means) / 3 / 4
    of_images = sum((mean - center) ** 2 for mean in columns) / 29 / 30
    residuals = [
        differences[seed, image] - means[seed] - columns[image] + center
        for seed in range(4)
        for image in range(30)
    ]
    of_residuals = sum(residual**2 for residual in residuals) / (3 * 29) / (30 * 4)
    variance = max(of_seeds + of_images - of_residuals, of_seeds, of_images)
    freedom = variance**2 / (of_seeds**2 / 3 + of_images**2 / 29)
    found = TwoWay.of(differences)
    assert (found.value, found.error) == pytest.approx((center, variance**0.5))
    assert found.freedom == pytest.approx(freedom)
    # The mean squares of the two-way analysis of variance, and what they are expected to be.
    of_cell = of_residuals * 30 * 4
    assert found.residual_spread**2 == pytest.approx(of_cell)
    assert found.spread**2 == pytest.approx(max(4 * of_seeds - of_cell / 30, 0))
    assert found.image_spread**2 == pytest.approx(max(30 * of_images - of_cell / 4, 0))
    # Where both are above 0, as many pairs and images as there are give the error that there is.
    assert found.planned(4, 30).error == pytest.approx(variance**0.5)
    assert found.planned(4, 30).freedom == pytest.approx(freedom)
    reach = stats.t.isf(0.025, freedom) * variance**0.5
    assert found.ends() == pytest.approx((center - reach, center + reach))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("pairs", [3, 5, 10])
def test_the_interval_covers_the_truth_in_every_world(world: str, pairs: int) -> None:
    """1,000 experiments of 200 images each; the error of a share is 0.007."""
    rng, runs = np.random.default_rng(pairs), 1000
    covered = one_seed = 0
    for _ in range(runs):
        differences = draw(rng, world, pairs, 200)
        low, high = TwoWay.of(differences).ends()
        covered += low <= 0 <= high
        # Images of a single training, which say nothing of others.
        one_seed += abs(differences[0].mean()) <= 1.96 * differences[0].std(ddof=1) / np.sqrt(200)
    print(f"{world}, {pairs} pairs: {covered / runs:.3f}; images of one seed {one_seed / runs:.3f}")
    assert 0.92 <= covered / runs <= 0.985
    assert world != "seeds" or one_seed / runs < 0.7
