"""How far apart two distributions are.

Source: Lin 1991 (divergence), Endres and Schindelin 2003 (its root is a metric).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Smaller divergences are the rounding of float32; that of other types goes with the square of their eps.
ROUNDING = 1e-12


def shares(weights: Tensor) -> Tensor:
    """Return weights ``(..., E)``, none below 0, each row divided by its sum; a row without any weight stays 0."""
    import torch

    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def jensen_shannon_distance(p: Tensor, q: Tensor) -> Tensor:
    """Return the root of the Jensen-Shannon divergence to base 2, in [0, 1].

    Half of the weight moves to another expert. The divergence is 0.5 bits, and the distance its root:

    >>> import torch
    >>> from moeprobe.metrics.stats.divergence import jensen_shannon_distance
    >>> jensen_shannon_distance(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.0, 0.5]))
    tensor(0.7071)

    Args:
        p: ``(..., E)`` distributions, as ``shares`` returns them.
        q: ``(..., E)`` likewise.

    Returns:
        ``(...)``. A row without any weight is 1 from one that has some, and 0 from another without. Equal rows are 0
        exactly, and so are rows that differ by no more than their type rounds (float32: a distance below 1e-6).
    """
    return _distance(p, q, _part(p, q) + _part(q, p))


@dataclass(frozen=True)
class FewShares:
    """Distributions with K entries at most: their experts and shares ``(B, J, K)``."""

    experts: Tensor
    shares: Tensor

    @classmethod
    def of(cls, shares: Tensor, *, entries: int) -> FewShares:
        """Return rows ``(B, J, E)`` by their ``entries`` largest; the others are 0."""
        experts = shares.topk(entries, sorted=False).indices
        return cls(experts, shares.gather(-1, experts))

    def at(self, images: slice, rows: slice = slice(None)) -> FewShares:
        """Return some rows of some images."""
        return FewShares(self.experts[images, rows], self.shares[images, rows])

    def distances(self, compared: FewShares, *, dtype: torch.dtype) -> Tensor:
        """Return the Jensen-Shannon distance ``(B, J, I)`` of every row from every row of ``compared`` ``(B, I, K)``.

        A share that the other row lacks adds its half to the divergence; so only shares of both rows are compared.

        Args:
            compared: the row to compare with.
            dtype: what the shares were computed in: how far equal rows may be apart.
        """
        import torch

        divergence = (self.shares.sum(-1)[:, :, None] + compared.shares.sum(-1)[:, None]) / 2
        rows, columns = divergence.shape[1:]
        for column, other_column in itertools.product(
            range(self.experts.shape[-1]), range(compared.experts.shape[-1])
        ):
            same = self.experts[:, :, None, column] == compared.experts[:, None, :, other_column]
            index = same.flatten().nonzero()[:, 0]
            row = index // columns
            p = self.shares[..., column].flatten()[row]
            q = compared.shares[..., other_column].flatten()[row // rows * columns + index % columns]
            apart = (_part(p, q) + _part(q, p)) / (2 * math.log(2))
            divergence.view(-1).index_add_(0, index, apart - (p + q) / 2)
        return torch.where(divergence <= _rounding(dtype), 0, divergence).clamp_max(1).sqrt()


def _part(p: Tensor, q: Tensor) -> Tensor:
    """Return the terms of ``p`` in the divergence, in nats, times 2; ``q`` holds the other row's entries."""
    import torch

    total = p + q
    # log(p / m) = log(1 + r): exact where the two are close, where the logarithms of p and m would cancel.
    r = (p - q) / total.where(total > 0, 1)
    # A weight that the other side's rounds away is not all: its logarithm stays finite.
    return torch.special.xlog1py(p, r.clamp_min(torch.finfo(r.dtype).eps / 2 - 1))


def _distance(p: Tensor, q: Tensor, terms: Tensor) -> Tensor:
    import torch

    divergence = terms.sum(-1) / (2 * math.log(2))
    distance = torch.where(divergence <= _rounding(p.dtype), 0, divergence).clamp_max(1).sqrt()
    return distance.masked_fill((p > 0).any(-1) != (q > 0).any(-1), 1)


def _rounding(dtype: torch.dtype) -> float:
    """Return the divergence up to which rows of a type are equal."""
    import torch

    return ROUNDING * (torch.finfo(dtype).eps / torch.finfo(torch.float32).eps) ** 2
