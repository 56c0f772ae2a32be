"""How often do intervals of mean prices hold the truth, where a few images carry them? With the guard and without.

Prints the table of docs/concepts/interval-coverage.md on means of losses.

    python -m benchmarks.tails --runs 1000

A price is the rise of an image's loss. Most are near 0, and a few are as large as all the others together. Sizes of
prices are drawn between quantiles: those of bans of single experts on the 360 test images of digits, and others that
many images carry. No model is needed.

Axes: n images.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from moeprobe.metrics.stats.bootstrap import FEW_CARRIERS, Bootstrap, Replicates
from moeprobe.metrics.stats.proportions import critical
from moeprobe.metrics.stats.statistic import Array, MeanLoss, standard_error

IMAGES = (40, 200, 1000)
# Experiments that share their resamples; their data are other data.
_SHARING = 10


# Shares of the images whose prices are below the sizes of a world; between two of them their logarithms are even.
_SHARES = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)


@dataclass(frozen=True)
class World:
    """What prices are drawn from.

    Attributes:
        sizes: of prices without their signs, in nats, at the quantiles ``_SHARES``.
        rises: share of the prices that are rises.
    """

    sizes: tuple[float, ...]
    rises: float = 0.6

    def truth(self) -> float:
        """Return the mean price of infinitely many images."""
        sizes = np.array(self.sizes)
        means = np.diff(sizes) / np.diff(np.log(sizes))
        return (2 * self.rises - 1) * float(np.diff(_SHARES) @ means)

    def draw(self, rng: np.random.Generator, num_images: int) -> Array:
        """Return the prices of some images ``(n,)``."""
        sizes = np.exp(np.interp(rng.random(num_images), _SHARES, np.log(self.sizes)))
        prices: Array = np.where(rng.random(num_images) < self.rises, sizes, -sizes)
        return prices


WORLDS = {
    "half on 1 to 3 of 360 images": World((1e-8, 2e-8, 1e-7, 1e-6, 2e-5, 2e-4, 1e-3, 0.044, 0.94)),
    "half on 3 to 7 of 360 images": World((1e-7, 1e-6, 1e-5, 1.3e-4, 8e-4, 7.4e-3, 0.037, 0.37, 1.1)),
    "half on 5 to 9 of 360 images": World((1e-6, 1.1e-5, 7e-5, 3e-4, 1.7e-3, 0.016, 0.076, 0.38, 0.86)),
    "half on 35 to 50 of 360 images": World((1e-3, 5e-3, 0.02, 0.05, 0.12, 0.25, 0.4, 0.8, 1.2)),
}


@dataclass(frozen=True)
class Rates:
    """Shares of some experiments.

    Attributes:
        unguarded: intervals that hold the truth, without the guard.
        passed: experiments with an interval, with the guard.
        guarded: those of them whose interval holds the truth; NaN of none.
        listed_unguarded: experiments whose upper end is below the truth: an expert on the list that costs as much as
            the limit, without the guard.
        listed: the same with the guard.
    """

    unguarded: float
    passed: float
    guarded: float
    listed_unguarded: float
    listed: float


def experiment(world: World, num_images: int, *, runs: int, resamples: int, seed: int = 0) -> Rates:
    """Return what so many experiments come to."""
    rng = np.random.default_rng([seed, num_images])
    truth, once = world.truth(), np.ones(num_images)
    outcomes = []
    for run in range(runs):
        if run % _SHARING == 0:
            bootstrap = Bootstrap(num_images, seed=run, num_resamples=resamples)
        mean = MeanLoss(world.draw(rng, num_images), once)
        [guarded] = bootstrap.replicate([(mean, once.astype(int))])
        unguarded = replace(guarded, carriers=None)
        error = standard_error(mean.influence(), num_images)
        outcomes.append(
            [
                _holds(unguarded, truth),
                guarded.interval().flag != FEW_CARRIERS,
                _holds(guarded, truth),
                _is_listed(unguarded, error, truth),
                _is_listed(guarded, error, truth),
            ]
        )
    unguarded_share, passed, held, listed_unguarded, listed = np.mean(outcomes, axis=0)
    return Rates(unguarded_share, passed, held / passed if passed else np.nan, listed_unguarded, listed)


def _holds(replicates: Replicates, truth: float) -> bool:
    found = replicates.interval()
    return bool(found.low <= truth <= found.high)


def _is_listed(replicates: Replicates, error: float, limit: float) -> bool:
    """Return whether an expert of this price would be on the list of ``experts --loss``, as the only expert."""
    reach = critical(replicates.images) * error
    return bool(max(replicates.interval().high, replicates.point + reach) < limit)


def simulate(*, runs: int, resamples: int, seed: int = 0) -> dict[tuple[str, int], Rates]:
    """Return the rates by world and number of images."""
    return {
        (name, num_images): experiment(world, num_images, runs=runs, resamples=resamples, seed=seed)
        for name, world in WORLDS.items()
        for num_images in IMAGES
    }


def table(found: Mapping[tuple[str, int], Rates]) -> str:
    """Return the rates in Markdown."""
    lines = [
        "| prices | images | without the guard | has an interval | of these | on the list, without | on the list |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, num_images), rates in found.items():
        guarded = "–" if np.isnan(rates.guarded) else f"{rates.guarded:.3f}"
        lines.append(
            f"| {name} | {num_images:,} | {rates.unguarded:.3f} | {rates.passed:.3f} | {guarded} "
            f"| {rates.listed_unguarded:.3f} | {rates.listed:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--runs", type=int, default=1000, help="experiments per kind of prices and number of images"
    )
    parser.add_argument("--resamples", type=int, default=1000)
    arguments = parser.parse_args()
    print(table(simulate(runs=arguments.runs, resamples=arguments.resamples)))
