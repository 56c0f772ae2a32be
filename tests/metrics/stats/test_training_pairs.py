"""Numbers of pairs of trainings and shares over sets of them, by hand."""

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.stats.training_pairs import Quantity, SetShare


def quantity(value: float, seed: int) -> Quantity:
    return Quantity(value, np.random.default_rng(seed).standard_normal(25))


def test_differences_and_ratios_keep_the_influences_of_images() -> None:
    first, second = quantity(2.0, 0), quantity(0.5, 1)
    difference, ratio, step = first.minus(second), first.over(second), 1e-6
    assert difference.value == 1.5 and ratio.value == 4
    assert difference.influence == pytest.approx(first.influence - second.influence)
    up, down = (
        (2.0 + sign * step * first.influence) / (0.5 + sign * step * second.influence) for sign in (1, -1)
    )
    assert ratio.influence == pytest.approx((up - down) / (2 * step), rel=1e-6)
    nothing = first.over(quantity(0.0, 2))
    assert np.isnan([nothing.value, *nothing.influence]).all()


def test_images_and_trainings_add_their_variances() -> None:
    values = {(0, 1): 0.6, (0, 2): 0.7, (1, 2): 0.8, (0, 3): 0.4, (1, 3): 0.5, (2, 3): 0.9}
    quantities = {pair: quantity(value, at) for at, (pair, value) in enumerate(values.items())}
    share = SetShare.over_pairs(quantities)
    left = [np.mean([value for pair, value in values.items() if one not in pair]) for one in range(4)]
    variance = 3 / 4 * sum((each - np.mean(left)) ** 2 for each in left)
    assert (share.value, share.variance, share.trainings) == pytest.approx((0.65, variance, 4))
    influence = np.sum([one.influence for one in quantities.values()], axis=0) / 6
    assert share.influence == pytest.approx(influence)
    error = np.sqrt(25 / 24 * (influence**2).sum() + variance)
    reach = stats.t.isf(0.025, 3) * error
    assert share.ends(25) == pytest.approx((0.65 - reach, 0.65 + reach))
    assert np.isnan(share.ends(19)).all()
    three = SetShare.over_pairs({pair: one for pair, one in quantities.items() if 3 not in pair})
    difference = share.minus(three)
    assert difference.value == pytest.approx(share.value - three.value)
    assert difference.influence == pytest.approx(share.influence - three.influence)
    assert (difference.variance, difference.trainings) == (share.variance + three.variance, 3)
