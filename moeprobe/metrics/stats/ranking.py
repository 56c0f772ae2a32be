"""How well do ranks of tokens tell those that flip from the others: the area below the ROC curve.

It is the probability that a token that flips has a lower rank than one that does not; ties count half. Tokens of an
image vary together, so the standard error is over images.

Values are ranked by their codes: positive numbers rounded to nine significant bits, from 2⁻⁴⁰ to 2²⁴. Numbers of one
code, at most 0.4 % apart, are ties. So the code and the flip of a token take two bytes, and many images are added up as
counts by code.

Axes: R resamples, n images, J tokens of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.entries import sum_by_key
from moeprobe.metrics.stats.statistic import Array, Integers, Totals, divide

if TYPE_CHECKING:
    from torch import Tensor

# Bits of a code, and of float32's fraction that it leaves out.
_CODE_BITS, _DROPPED_BITS = 14, 15
_CODES = 2**_CODE_BITS
# The code of 2⁻⁴⁰ by float32's own bits, whose exponents begin at 127.
_FIRST = (127 - 40) << (23 - _DROPPED_BITS)
# In place of a token that does not count.
_ABSENT = -1


def encode(values: Tensor, flips: Tensor, is_counted: Tensor) -> Tensor:
    """Return the code of each token ``(B, J)`` int16, with its flip in the last bit; -1 = not counted.

    Args:
        values: from 0 up ``(B, J)``, infinity included.
        flips: ``(B, J)``.
        is_counted: ``(B, J)``.
    """
    import torch

    # The bits of positive floats are in the order of the numbers.
    bits = values.to(torch.float32).clamp_min(0).contiguous().view(torch.int32)
    codes = ((bits >> _DROPPED_BITS) - _FIRST).clamp(0, _CODES - 1)
    return (2 * codes + flips).masked_fill(~is_counted, _ABSENT).to(torch.int16)


@dataclass(frozen=True)
class RankedFlips:
    """The area below the ROC curve of tokens ``(n, J)``, as ``encode`` writes them; low codes predict flips.

    Margins of four tokens, of which the first and the third flip. The first is below both others, the third below one
    of them: 3 of 4 pairs:

    >>> import torch
    >>> from moeprobe.metrics.stats.ranking import RankedFlips, encode
    >>> margins, flips = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[True, False, True, False]])
    >>> ranks = RankedFlips(encode(margins, flips, torch.ones(1, 4, dtype=torch.bool)).numpy())
    >>> ranks.value(ranks.totals())
    0.75
    """

    tokens: NDArray[np.generic]
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the area under each set of weights; NaN where all tokens flip, or none."""
        return _area(np.stack([self._counts(weight) for weight in weights.T], axis=-1))

    def totals(self) -> Totals:
        """Return how many tokens have each code: without a flip, and with one ``(2, K)``."""
        return self._counts(np.ones(len(self.tokens)))

    def value(self, totals: Totals) -> float:
        """Return the area."""
        return float(_area(totals[..., None])[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return what the pairs with an image's tokens add to the area."""
        counts = self.totals() if totals is None else totals
        still, flipped = counts.sum(1)
        # For each code, the flips below it and the tokens without a flip above it; ties count half.
        flips_below = np.cumsum(counts[1]) - counts[1] / 2
        above = still - np.cumsum(counts[0]) + counts[0] / 2
        image, code, flips = self._entries
        # An area is a mean over pairs: it falls where an image brings more pairs than its share.
        area = self.value(counts)
        gain = np.where(
            flips == 1,
            divide(divide(above[code], still) - area, flipped),
            divide(divide(flips_below[code], flipped) - area, still),
        )
        return sum_by_key(image, gain, len(self.tokens))

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return its score interval over ``images``."""
        return proportions.score_interval(
            self.value(self.totals() if totals is None else totals), error, images
        )

    def swing(self, totals: Totals | None) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Return False: images are no trials of it."""
        return False

    def _counts(self, weight: Array) -> Array:
        """Return the tokens of each code ``(2, K)`` of images with weights ``(n,)``."""
        image, code, flips = self._entries
        key = flips * _CODES + code
        return sum_by_key(key, weight[image], 2 * _CODES).reshape(2, _CODES)

    @cached_property
    def _entries(self) -> tuple[Integers, Integers, Integers]:
        """The image, the code and the flip of each token that counts."""
        image, token = np.nonzero(self.tokens != _ABSENT)
        code, flips = np.divmod(self.tokens[image, token].astype(np.int64), 2)
        return image, code, flips


def _area(counts: Array) -> Array:
    """Return the area ``(R,)`` of tokens by flip and code ``(2, K, R)``."""
    still, flips = counts
    flips_below = np.cumsum(flips, axis=0) - flips / 2
    return divide((still * flips_below).sum(0), still.sum(0) * flips.sum(0))
