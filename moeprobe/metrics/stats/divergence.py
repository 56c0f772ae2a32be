"""How far apart two distributions are.

Source: Lin 1991 (divergence), Endres and Schindelin 2003 (its root is a metric).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


# Smaller divergences are the rounding of float32; that of other types goes with the square of their eps.
_ROUNDING = 1e-12


def shares(weights: Tensor) -> Tensor:
    """Return weights ``(..., E)``, none below 0, each row divided by its sum; a row without any weight stays 0."""
    import torch

    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def jensen_shannon_distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the root of the Jensen-Shannon divergence to base 2, in [0, 1].

    Args:
        one: ``(..., E)`` distributions, as ``shares`` returns them.
        other: ``(..., E)`` likewise.

    Returns:
        ``(...)``. A row without any weight is 1 from one that has some, and 0 from another without. Equal rows are 0
        exactly, and so are rows that differ by no more than their type rounds (float32: a distance below 1e-6).
    """
    return _distance(one, other, _parts(one, other) + _parts(other, one))


@dataclass(frozen=True)
class SparseRows:
    """Rows with K entries at most: distributions and vectors of length one ``(..., K)``, of experts ``(..., K)``."""

    experts: Tensor
    shares: Tensor
    units: Tensor

    @classmethod
    def of(cls, shares: Tensor, units: Tensor, *, entries: int) -> SparseRows:
        """Return rows ``(..., E)`` by their ``entries`` largest; the others are 0."""
        experts = shares.topk(entries, sorted=False).indices
        return cls(experts, shares.gather(-1, experts), units.gather(-1, experts))

    def roll(self, shift: int) -> SparseRows:
        """Return row j − shift in the place of row j, in a circle; rows are the second axis."""
        return SparseRows(*(each.roll(shift, 1) for each in (self.experts, self.shares, self.units)))

    def compare(self, other: SparseRows) -> tuple[Tensor, Tensor]:
        """Return Jensen-Shannon distances and cosines ``(...)``, row by row."""
        same = self.experts[..., :, None] == other.experts[..., None, :]
        theirs = (same * other.shares[..., None, :]).sum(-1)
        ours = (same * self.shares[..., :, None]).sum(-2)
        cosine = (same * self.units[..., :, None] * other.units[..., None, :]).sum((-2, -1))
        terms = _parts(self.shares, theirs), _parts(other.shares, ours)
        return _distance(self.shares, other.shares, terms[0] + terms[1]), cosine


def _parts(one: Tensor, other: Tensor) -> Tensor:
    """Return what the entries of ``one`` have in the divergence, in nats, times 2; ``other`` at the same places."""
    import torch

    total = one + other
    # log(p / m) = log(1 + r): exact where the two are close, where the logarithms of p and m would cancel.
    r = (one - other) / total.where(total > 0, 1)
    # A weight that the other side's rounds away is not all: its logarithm stays finite.
    return torch.special.xlog1py(one, r.clamp_min(torch.finfo(r.dtype).eps / 2 - 1))


def _distance(one: Tensor, other: Tensor, terms: Tensor) -> Tensor:
    import torch

    divergence = terms.sum(-1) / (2 * math.log(2))
    rounding = _ROUNDING * (torch.finfo(one.dtype).eps / torch.finfo(torch.float32).eps) ** 2
    distance = torch.where(divergence <= rounding, 0, divergence).clamp_max(1).sqrt()
    return distance.masked_fill((one > 0).any(-1) != (other > 0).any(-1), 1)
