"""A mean of crossed samples: every training of some was measured with every image of some.

Trainings and images both vary, and a claim is about other trainings and other images. Images of one training say
nothing of trainings, and trainings on the same images say nothing of images; here both errors add up.

Sources: variances of crossed samples, Owen 2007 and Cameron, Gelbach and Miller 2011; degrees of freedom of a sum of
variances, Satterthwaite 1946.

Axes: G pairs of trainings, n images.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import special

from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.statistic import Array


@dataclass(frozen=True)
class TwoWay:
    """The mean of crossed differences, with its error over both samples.

    Two pairs of trainings with means 1 and 3, and no image that differs from another: the error over trainings is
    √(2 / 2), and they differ by √2 from each other:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.two_way import TwoWay
    >>> found = TwoWay.of(np.array([[1.0, 1, 1], [3, 3, 3]]))
    >>> found.value, found.error, found.freedom, round(found.spread, 3)
    (2.0, 1.0, 1.0, 1.414)

    Attributes:
        value: the mean over all.
        error: its standard error over trainings and images.
        freedom: degrees of freedom of the error.
        spread: standard deviation of the true differences of pairs of trainings, in the metric's unit; 0 where images
            explain how they differ.
    """

    value: float
    error: float
    freedom: float
    spread: float

    @classmethod
    def of(cls, differences: Array) -> Self:
        """Return the mean of differences ``(G, n)`` of at least two pairs and images.

        Over trainings the variance of the mean is Var_g(D̄_g) / G, over images Var_i(D̄_i) / n. Both hold the variance of
        what is neither of a training nor of an image, Σ (D_gi − D̄_g − D̄_i + D̄)² / ((G − 1) (n − 1) n G), which is
        subtracted once. The sum is no smaller than either.
        """
        pairs, images = differences.shape
        of_pairs = float(differences.mean(1).var(ddof=1)) / pairs
        of_images = float(differences.mean(0).var(ddof=1)) / images
        residuals = (
            differences - differences.mean(1, keepdims=True) - differences.mean(0) + differences.mean()
        )
        of_residuals = float((residuals**2).sum()) / ((pairs - 1) * (images - 1) * images * pairs)
        variance = max(of_pairs + of_images - of_residuals, of_pairs, of_images)
        parts = of_pairs**2 / (pairs - 1) + of_images**2 / (images - 1)
        # Without any variance, the fewer of both say how much is known.
        freedom = variance**2 / parts if parts > 0 else float(min(pairs, images) - 1)
        # A pair's own mean varies with the images that it was measured on.
        of_cells = float(differences.var(axis=1, ddof=1).mean()) / (images * pairs)
        spread = float(np.sqrt(max(pairs * (of_pairs - of_cells), 0.0)))
        return cls(float(differences.mean()), float(np.sqrt(variance)), freedom, spread)

    def ends(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval of the mean, by t."""
        reach = -float(special.stdtrit(self.freedom, (1 - confidence) / 2)) * self.error
        return self.value - reach, self.value + reach
