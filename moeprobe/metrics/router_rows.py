"""Numbers about a router that need no data, and what untrained routers of its shape show.

Axes: R rows, D width, N vectors of the embedding, M leading directions of it.

Source: effective rank: Roy and Vetterli 2007, "The effective rank: a measure of effective dimensionality".
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moeprobe.routing.router_rows import Array, RouterRows, Start
from moeprobe.runtime.seeds import generator

# Rows shorter than this share of the median row score every token next to nothing.
_ZERO = 1e-3
# Rows whose directions are at most 8° apart.
PARALLEL = 0.99
# Untrained routers that are drawn, and the share of them that a band holds.
DRAWS = 200
BAND = 0.95


@dataclass(frozen=True)
class RowNumbers:
    """What the rows of a router show; None where a number does not apply.

    Attributes:
        norm_low: length of the shortest row.
        norm_median: length of the median row.
        norm_high: length of the longest row.
        largest_cosine: of two rows.
        effective_rank: exp(entropy of the singular values, as shares of their sum): from 1 to the number of rows.
        common_share: share of the squared lengths that lies in the mean row, which moves the scores of all experts
            alike and so changes no choice by scores.
        embedding_share: share of the squared lengths along as many leading directions of the embedding as there are
            rows.
    """

    norm_low: float
    norm_median: float
    norm_high: float
    largest_cosine: float | None
    effective_rank: float | None
    common_share: float | None
    embedding_share: float | None

    def plain(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class RowFaults:
    """Rows that stand out, by number.

    Attributes:
        zero: rows of next to no length.
        parallel: pairs of rows in one direction.
        closest: the pair with the largest cosine; None where there is none.
        unreachable: experts that no token of the length √D can choose, whatever its direction.
        bias_low: the least bias; None = no bias.
        bias_high: the largest bias.
    """

    zero: tuple[int, ...]
    parallel: tuple[tuple[int, int], ...]
    closest: tuple[int, int] | None
    unreachable: tuple[int, ...]
    bias_low: float | None
    bias_high: float | None

    def plain(self) -> dict[str, Any]:
        """Return the rows by what they are."""
        return asdict(self)


def measure_rows(rows: Array, directions: Array | None = None) -> RowNumbers:
    """Return what rows ``(R, D)`` show; ``directions`` ``(M, D)`` are of the embedding (``leading_directions``)."""
    norms = np.linalg.norm(rows, axis=1)
    cosines = _cosines(rows, norms)[np.triu_indices(len(rows), 1)]
    cosines = cosines[~np.isnan(cosines)]
    total = float((norms**2).sum())
    along = None if directions is None or not total else float(((rows @ directions.T) ** 2).sum()) / total
    return RowNumbers(
        norm_low=float(norms.min()),
        norm_median=float(np.median(norms)),
        norm_high=float(norms.max()),
        largest_cosine=float(cosines.max()) if len(cosines) else None,
        effective_rank=_effective_rank(rows) if total else None,
        common_share=len(rows) * float((rows.mean(0) ** 2).sum()) / total if total else None,
        embedding_share=along,
    )


def find_faults(router: RouterRows) -> RowFaults:
    """Return the rows of a router that stand out."""
    norms = np.linalg.norm(router.rows, axis=1)
    cosines = np.triu(_cosines(router.rows, norms), 1)
    cosines[np.tril_indices(len(norms))] = np.nan
    closest = None
    if not np.isnan(cosines).all():
        first, second = np.unravel_index(np.nanargmax(cosines), cosines.shape)
        closest = int(first), int(second)
    pairs = np.argwhere(cosines >= PARALLEL)
    bias = router.bias
    return RowFaults(
        zero=tuple(np.flatnonzero(norms <= _ZERO * np.median(norms)).tolist()),
        parallel=tuple((int(first), int(second)) for first, second in pairs),
        closest=closest,
        unreachable=_unreachable(router),
        bias_low=None if bias is None else float(bias.min()),
        bias_high=None if bias is None else float(bias.max()),
    )


def _cosines(rows: Array, norms: Array) -> Array:
    """Return the cosine of each pair of rows ``(R, R)``; NaN where one has no length."""
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = rows / norms[:, None]
    return unit @ unit.T


def _effective_rank(rows: Array) -> float:
    # Singular values by the smaller of the two products, whose roots lose only those near 0.
    small = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(small), 0))
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _unreachable(router: RouterRows) -> tuple[int, ...]:
    """Return the experts to which at least K others are preferred by every token of the length √D.

    The products of a token x with two rows differ by at most |x| times the distance of the rows.
    """
    rows, bias, top_k = router.rows, router.bias, router.top_k
    if bias is None or top_k is None:
        return ()
    if router.is_bias_of_gates:
        reach = np.ones((len(rows), len(rows)))
    else:
        squares = (rows**2).sum(1)
        squared = squares[:, None] + squares - 2 * rows @ rows.T
        reach = np.sqrt(np.maximum(squared, 0) * rows.shape[1])
    # [e, f]: f is always before e.
    is_before = bias[None] - bias[:, None] > reach
    return tuple(np.flatnonzero(is_before.sum(1) >= top_k).tolist())


def leading_directions(vectors: Array, count: int) -> Array | None:
    """Return the ``count`` leading directions ``(count, D)`` of vectors ``(N, D)``, around 0.

    None where as many fill the space, or there are fewer vectors.
    """
    number, width = vectors.shape
    if count >= width or count > number:
        return None
    if number >= width:
        return np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1][:, :count].T
    _, _, directions = np.linalg.svd(vectors, full_matrices=False)
    return directions[:count]


def untrained_bands(
    shape: tuple[int, int], start: Start, *, seed: int = 0
) -> Mapping[str, tuple[float, float]]:
    """Return between which values ``BAND`` of untrained routers lie, for each number that they have.

    Untrained rows know of no embedding: its directions are as good as any others.

    Args:
        shape: (R, D) of the rows.
        start: how they are drawn.
        seed: of the draws.
    """
    rng = generator(seed, "untrained router rows")
    number, width = shape
    directions = np.eye(number, width) if number < width else None
    untrained = [measure_rows(start.draw(shape, rng), directions).plain() for _ in range(DRAWS)]
    ends = ((1 - BAND) / 2, (1 + BAND) / 2)
    bands = {}
    for name in untrained[0]:
        values = [row[name] for row in untrained]
        if None not in values:
            low, high = np.quantile(np.array(values, float), ends)
            bands[name] = float(low), float(high)
    return bands
