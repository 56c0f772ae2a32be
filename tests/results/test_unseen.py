"""Of a share of which nothing was seen, the interval counts tokens by how much those of an image vary together."""

import numpy as np
import pytest

from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates, with_observations
from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.statistic import Ratio, Share

IMAGES, PATCHES = 30, 16


def resampled(*statistics: Ratio | Kappa) -> list[Replicates]:
    trials = np.full(IMAGES, PATCHES)
    return Bootstrap(IMAGES, seed=0).replicate([(one, trials) for one in statistics])


def flips(*number: int) -> Share:
    """A share with so many flips in the first images."""
    hits = np.zeros(IMAGES)
    hits[: len(number)] = number
    return Share(hits, np.full(IMAGES, float(PATCHES)))


def test_nothing_seen_says_at_most_a_little_more_than_one_seen() -> None:
    none, one = resampled(flips(), flips(1))
    before, after = none.interval(), with_observations(none, 1.0).interval()
    assert before.high > 0.1 and one.interval().high == pytest.approx(0.012, abs=1e-3)
    assert after.low == after.value == 0 and 0.8 * before.high / PATCHES < after.high < one.interval().high
    assert with_observations(none, 1.0).interval() == with_observations(none, 0.2).interval()
    assert with_observations(none, 4.0).interval().high == pytest.approx(4 * after.high, rel=0.1)
    assert with_observations(none, 1e9).interval() == before, "images are independent, whatever the effect"
    assert with_observations(one, 5.0).interval() == one.interval()


def test_kappa_of_one_is_held_by_its_match() -> None:
    match, chance = (
        Share(np.full(IMAGES, 16.0), np.full(IMAGES, 16.0)),
        Ratio(np.full(IMAGES, 4.0), np.full(IMAGES, 16.0)),
    )
    share, kappa = (with_observations(one, 2.0).interval() for one in resampled(match, Kappa(match, chance)))
    assert share.high == kappa.high == 1
    assert kappa.low == pytest.approx((share.low - 0.25) / 0.75) and share.low > 0.98


def test_the_effect_of_a_share_is_how_much_an_image_varies_as_one() -> None:
    alone, together = resampled(flips(*[1] * 8), flips(8))
    assert alone.effect < 1.1 and together.effect == pytest.approx(8, rel=0.1)
    assert np.isnan(resampled(flips())[0].effect)


@pytest.mark.parametrize("correlation", [0.001, 0.015, 0.1])
def test_the_truth_beyond_the_end_is_rarely_missed(correlation: float) -> None:
    """Of 4,000 runs whose share is just beyond the end, at most 5 % see nothing; two other cells lend the effect."""
    rng, both = np.random.default_rng(0), 1 / correlation - 1

    def drawn(share: float, size: int) -> np.ndarray:
        chance = rng.beta(share * both, (1 - share) * both, (size, IMAGES))
        return rng.binomial(PATCHES, chance).astype(float)

    number = np.full(IMAGES, float(PATCHES))
    effect = float(
        np.mean([one.effect for one in resampled(*(Share(hits, number) for hits in drawn(0.05, 2)))])
    )
    end = with_observations(resampled(flips())[0], effect).interval().high
    missed = (drawn(1.01 * end, 4000).sum(1) == 0).mean()
    assert missed <= 0.05, (effect, end)
