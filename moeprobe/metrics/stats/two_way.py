"""A mean of crossed samples: every training of some was measured with every image of some.

Trainings and images both vary, and a claim is about other trainings and other images. Images of one training say
nothing of trainings, and trainings on the same images say nothing of images; here both errors add up.

Sources: variances of crossed samples, Owen 2007 and Cameron, Gelbach and Miller 2011; degrees of freedom of a sum of
variances, Satterthwaite 1946.

Axes: G pairs of trainings, n images.
"""

from dataclasses import dataclass, replace
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
        image_spread: the same of what an image adds to all pairs alike.
        residual_spread: the same of what an image adds to one pair alone.
    """

    value: float
    error: float
    freedom: float
    spread: float
    image_spread: float = 0.0
    residual_spread: float = 0.0

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
        # What images add to all pairs alike moves no pair from the others.
        spreads = [
            float(np.sqrt(max(component, 0.0)))
            for component in (
                pairs * (of_pairs - of_residuals),
                images * (of_images - of_residuals),
                pairs * images * of_residuals,
            )
        ]
        freedom = _freedom(variance, of_pairs, of_images, pairs, images)
        return cls(float(differences.mean()), float(np.sqrt(variance)), freedom, *spreads)

    def planned(self, pairs: int, images: float) -> Self:
        """Return the estimate that so many pairs and images are expected to give, by the spreads of this one.

        ``images`` may be infinite.
        """
        of_residuals = self.residual_spread**2 / (pairs * images)
        of_pairs = self.spread**2 / pairs + of_residuals
        of_images = self.image_spread**2 / images + of_residuals
        variance = of_pairs + of_images - of_residuals
        freedom = _freedom(variance, of_pairs, of_images, pairs, images)
        return replace(self, error=float(np.sqrt(variance)), freedom=freedom)

    def ends(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval of the mean, by t."""
        reach = -float(special.stdtrit(self.freedom, (1 - confidence) / 2)) * self.error
        return self.value - reach, self.value + reach


def _freedom(variance: float, of_pairs: float, of_images: float, pairs: int, images: float) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of two variances of a mean."""
    parts = of_pairs**2 / (pairs - 1) + of_images**2 / (images - 1)
    # Without any variance, the fewer of both say how much is known.
    return variance**2 / parts if parts > 0 else float(min(pairs, images) - 1)
