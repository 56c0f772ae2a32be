"""How far apart two distributions are.

Source: Lin 1991 (divergence), Endres and Schindelin 2003 (its root is a metric).
"""

import math

import torch
from torch import Tensor


def jensen_shannon_distance(first: Tensor, second: Tensor) -> Tensor:
    """Return the root of the Jensen-Shannon divergence to base 2 between weights, in [0, 1].

    Args:
        first: ``(..., E)`` weights, none below 0; each row is divided by its sum.
        second: ``(..., E)`` likewise.

    Returns:
        ``(...)``. A row without any weight is 1 from one that has some, and 0 from another without. Equal rows are 0
        exactly.
    """
    served = torch.stack([first.sum(-1) > 0, second.sum(-1) > 0])
    one, two = (weights / weights.sum(-1, keepdim=True) for weights in (first, second))
    middle = (one + two) / 2
    # With r = (p − q) / (p + q) the two terms of an outcome are m/2 · (log(1 − r²) + 2 r atanh r): unlike logarithms of
    # ratios, nothing large is subtracted where p and q are nearly equal.
    ratio = ((one - two) / (one + two)).abs()
    inside = ratio.clamp_max(1 - torch.finfo(ratio.dtype).eps)
    terms = torch.log1p(-inside.square()) + 2 * inside * torch.atanh(inside)
    terms = terms.masked_fill(ratio == 1, 2 * math.log(2)).masked_fill(middle == 0, 0)
    distance = ((middle * terms).sum(-1) / (2 * math.log(2))).clamp(0, 1).sqrt()
    return distance.where(served.all(0), (served[0] != served[1]).to(distance.dtype))
