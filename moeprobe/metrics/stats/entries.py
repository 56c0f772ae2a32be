"""Which token of which image has which expert, as a list: of tokens with one expert, or with shares of several.

Axes: n images, J tokens of an image, E experts, m entries: tokens with one of their experts each.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers


@dataclass(frozen=True)
class Entries:
    """Which token of which image has which expert, and how much of the token that is; each ``(m,)``."""

    image: Integers
    token: Integers
    expert: Integers
    weight: Array

    def per_image(self, num_images: int, num_experts: int) -> Array:
        """Return each image's sums by expert ``(n, E)``."""
        key = self.image * num_experts + self.expert
        return sum_by_key(key, self.weight, num_images * num_experts).reshape(num_images, num_experts)


def of_choices(choices: NDArray[np.generic]) -> Entries:
    """Return the entries of one expert for each token ``(n, J)``, -1 = none."""
    experts = choices.astype(np.int64)
    image, token = np.nonzero(experts >= 0)
    return Entries(image, token, experts[image, token], np.ones(len(image)))


def of_weights(weights: NDArray[np.generic]) -> Entries:
    """Return the entries of tokens that share their experts ``(n, J, E)``."""
    shares = weights.astype(np.float64)
    image, token, expert = np.nonzero(shares > 0)
    return Entries(image, token, expert, shares[image, token, expert])


def sum_by_key(keys: Integers, values: Array, size: int) -> Array:
    """Return the sums of values by key ``(size,)``."""
    return np.bincount(keys, weights=values, minlength=size).astype(np.float64)
