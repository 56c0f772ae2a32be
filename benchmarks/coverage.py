"""How often do the 95 % intervals hold the truth? Experiments whose truth is known.

Prints the tables of docs/concepts/interval-coverage.md: that of resamples and that of linearized intervals.

    python -m benchmarks.coverage --runs 2000

An image has 16 patches of 8 experts. Which experts an image prefers, and how often a patch keeps its expert in the
other view, vary from image to image (or do not: *independent*). No model is needed.

Axes: n images, P patches, E experts.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.strata import single_stratum
from moeprobe.metrics.stats.chance.trials import Trials, within_image
from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.load import Entropy
from moeprobe.metrics.stats.statistic import Share, Statistic

Array = NDArray[np.float64]

IMAGES = (20, 50, 200)
LINEARIZED = (50, 200, 2000, 20_000)
PATCHES = 16
# Experiments that share their resamples; their data are other data.
_SHARING = 10


@dataclass(frozen=True)
class World:
    """What experiments are drawn from.

    Attributes:
        load: ``(E,)`` how often each expert is chosen.
        stable: mean chance of a patch to keep its expert; elsewhere it draws again from its image's experts.
        clustering: images' own preferences vary like a Dirichlet's, and their stability like a Beta's, of this sum of
            parameters; None = all images are alike.
    """

    load: Array
    stable: float
    clustering: float | None

    def truth(self) -> dict[str, float]:
        """Return the values that infinitely many images would have."""
        pooled = float(np.square(self.load).sum())
        within = pooled
        if self.clustering is not None:
            within += float((self.load * (1 - self.load)).sum()) / (self.clustering + 1)
        match = self.stable + (1 - self.stable) * within
        entropy = -float((self.load * np.log(self.load)).sum() / np.log(len(self.load)))
        return {
            "match": match,
            "chance, pooled": pooled,
            "chance, image": within,
            "κ, pooled": (match - pooled) / (1 - pooled),
            "κ, image": self.stable,
            "load entropy": entropy,
        }

    def draw(self, rng: np.random.Generator, num_images: int) -> dict[str, Statistic]:
        """Return the statistics of one experiment."""
        preferred, stable = np.tile(self.load, (num_images, 1)), np.full(num_images, self.stable)
        if self.clustering is not None:
            preferred = rng.dirichlet(self.load * self.clustering, size=num_images)
            stable = rng.beta(self.stable * self.clustering, (1 - self.stable) * self.clustering, num_images)
        reference, again = (_choose(rng, preferred) for _ in range(2))
        view = np.where(rng.random(reference.shape) < stable[:, None], reference, again)
        image, place = np.divmod(np.arange(reference.size), PATCHES)
        alike = same(reference.ravel(), view.ravel(), size=len(self.load))
        trials = Trials(image, alike, num_images=num_images)
        match = Share((reference == view).sum(1).astype(float), np.full(num_images, float(PATCHES)))
        pooled = Chance(trials, single_stratum(len(image)))
        within = within_image(trials, (place, place))
        histogram = np.zeros((num_images, len(self.load)))
        np.add.at(histogram, (image, view.ravel()), 1)
        return {
            "match": match,
            "chance, pooled": pooled,
            "chance, image": within,
            "κ, pooled": Kappa(match, pooled),
            "κ, image": Kappa(match, within),
            "load entropy": Entropy(histogram),
        }


def _choose(rng: np.random.Generator, preferred: Array) -> NDArray[np.int64]:
    """Return an expert for each patch ``(n, P)`` of images with preferences ``(n, E)``."""
    drawn = rng.random((len(preferred), PATCHES, 1))
    return (drawn > preferred.cumsum(1)[:, None, :-1]).sum(-1)


_UNEVEN = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.07, 0.05, 0.03])
_EVEN = np.full(8, 1 / 8)
WORLDS = {
    "stable 0.5, independent": World(_UNEVEN, 0.5, None),
    "stable 0.5, images differ": World(_UNEVEN, 0.5, 3.0),
    "stable 0.97, images differ": World(_UNEVEN, 0.97, 3.0),
    "even load, images differ": World(_EVEN, 0.5, 3.0),
}
# Share of images on which both classifiers are right, the first alone, the second alone.
CLASSIFIERS = {
    "accuracy 0.5": (0.25, 0.25, 0.25),
    "accuracy 0.97": (0.95, 0.02, 0.01),
    "accuracy 0.99": (0.98, 0.01, 0.005),
}


def _classifiers(
    shares: tuple[float, float, float], rng: np.random.Generator, num_images: int
) -> dict[str, Statistic]:
    """Return the accuracies of the first and the second."""
    outcome, once = rng.choice(4, size=num_images, p=[*shares, 1 - sum(shares)]), np.ones(num_images)
    return {
        name: Share(np.isin(outcome, right).astype(float), once)
        for name, right in (("first", [0, 1]), ("second", [0, 2]))
    }


def experiments(
    num_images: int, *, runs: int, resamples: int, seed: int, linear: bool = False
) -> Iterator[tuple[str, str, bool]]:
    """Yield (world, number, whether its interval holds the truth) of all numbers of all experiments.

    Intervals are those of resamples, or with ``linear`` those of the images' influences.
    """
    rng = np.random.default_rng([seed, num_images])

    def values(statistics: Mapping[str, Statistic], *, trials: int = PATCHES) -> dict[str, Replicates]:
        count = np.full(num_images, trials)
        if linear:
            return {name: linearize_all(statistic, count) for name, statistic in statistics.items()}
        found = bootstrap.replicate([(statistic, count) for statistic in statistics.values()])
        return dict(zip(statistics, found, strict=True))

    for run in range(runs):
        if run % _SHARING == 0 and not linear:
            bootstrap = Bootstrap(num_images, seed=run, num_resamples=resamples)
        for name, world in WORLDS.items():
            less = World(world.load, 0.8 * world.stable, world.clustering)
            truth, expected = world.truth(), less.truth()
            found = values(world.draw(rng, num_images))
            for number, replicates in found.items():
                yield name, number, _holds(replicates, truth[number])
            other = values({"κ, pooled": less.draw(rng, num_images)["κ, pooled"]})["κ, pooled"]
            yield (
                name,
                "difference of κ, pooled",
                _holds(other.minus(found["κ, pooled"]), expected["κ, pooled"] - truth["κ, pooled"]),
            )
        for name, shares in CLASSIFIERS.items():
            pair = values(_classifiers(shares, rng, num_images), trials=1)
            yield name, "accuracy", _holds(pair["first"], shares[0] + shares[1])
            difference = pair["second"].minus(pair["first"])
            yield name, "difference of accuracies", _holds(difference, shares[2] - shares[1])


def _holds(replicates: Replicates, truth: float) -> bool:
    found = replicates.interval()
    assert found.low <= found.value <= found.high or found.flag, "a value outside its own interval"
    return bool(found.low <= truth <= found.high)


def coverage(
    *, runs: int, resamples: int, seed: int = 0, images: Sequence[int] = IMAGES, linear: bool = False
) -> dict[tuple[str, str], list[float]]:
    """Return (world, number) -> the share of experiments whose interval holds the truth, for each of ``images``."""
    found: dict[tuple[str, str], list[float]] = {}
    for num_images in images:
        held: dict[tuple[str, str], int] = {}
        for name, number, holds in experiments(
            num_images, runs=runs, resamples=resamples, seed=seed, linear=linear
        ):
            held[name, number] = held.get((name, number), 0) + holds
        for key, times in held.items():
            found.setdefault(key, []).append(times / runs)
    return found


def table(found: Mapping[tuple[str, str], list[float]], *, images: Sequence[int] = IMAGES) -> str:
    """Return coverages in Markdown."""
    lines = [
        f"| what is drawn | number | {' | '.join(f'{n:,} images' for n in images)} |",
        "|---|---|" + "---|" * len(images),
    ]
    lines += [
        f"| {world} | {number} | {' | '.join(f'{share:.3f}' for share in shares)} |"
        for (world, number), shares in found.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2000, help="experiments per number and number of images")
    parser.add_argument("--resamples", type=int, default=1000)
    arguments = parser.parse_args()
    print(table(coverage(runs=arguments.runs, resamples=arguments.resamples)))
    linearized = coverage(runs=arguments.runs, resamples=0, images=LINEARIZED, linear=True)
    print("\n" + table(linearized, images=LINEARIZED))
