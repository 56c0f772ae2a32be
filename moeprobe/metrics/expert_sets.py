"""Sets of experts of the tokens of two sides, from what tokens chose or from bits.

Axes: B images, J pairs of tokens, M pairs of tokens of some images, E experts, K of a token, n images, W words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns
from moeprobe.metrics.stats.alike import jaccard_of_choices
from moeprobe.metrics.stats.arrays import Array
from moeprobe.metrics.stats.chance.sets import jaccard_of_pairs
from moeprobe.metrics.token_kinds import NO_PAIR, num_experts

if TYPE_CHECKING:
    from torch import Tensor

# Bits of an int32 without its sign: -1 is "no pair".
_BITS = 31
# Choices of a token up to which the subsets of its set are counted, 2**K − 1 each: all at once, or one size at a time.
_FEW = 4
_MORE = 10


@dataclass(frozen=True)
class Sides:
    """The pairs of tokens of some images, M of them, and their sets of experts.

    Attributes:
        image: ``(M,)`` image of each pair.
        position: ``(M,)`` its index among the image's pairs.
        sets: of either side ``(M, E)``, zeros and ones; None where ``choices`` says it all.
        choices: the experts of either side ``(M, K)`` where all tokens have the same number, and no more than
            ``_MORE``; else None.
        index: ``(M,)`` their Jaccard index.
        trial: ``(M,)`` whether at least one is not empty.
        num_images: n.
        num_places: pairs of an image.
    """

    image: NDArray[np.int64]
    position: NDArray[np.int64]
    sets: tuple[NDArray[np.floating], NDArray[np.floating]] | None
    choices: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    index: Array
    trial: NDArray[np.bool_]
    num_images: int
    num_places: int


def of_choices(columns: Columns) -> Sides:
    """Return the sets of what tokens chose."""
    reference, view = (columns[f"{side}_selected"] for side in ("reference", "view"))
    image, position = np.nonzero(reference[..., 0] != NO_PAIR)
    choices = tuple(side[image, position].astype(np.int64) for side in (reference, view))
    size = reference.shape[2]
    complete = all((side >= 0).all() for side in choices)
    if size <= _FEW and complete:
        every = np.ones(len(image), dtype=bool)
        return Sides(
            image,
            position,
            None,
            (choices[0], choices[1]),
            jaccard_of_choices(*choices),
            every,
            *reference.shape[:2],
        )
    experts = num_experts(columns)
    sets = []
    for side in choices:
        # One column more, for choices of nothing.
        members = np.zeros((len(side), experts + 1), dtype=np.float32)
        np.put_along_axis(members, side, 1, axis=1)
        sets.append(members[:, :experts])
    sides = _of_sets(image, position, sets[0], sets[1], *reference.shape[:2])
    return replace(sides, choices=(choices[0], choices[1])) if complete and size <= _MORE else sides


def of_words(columns: Columns) -> Sides:
    """Return the sets that are kept as bits."""
    first = columns["reference_set_0"].astype(np.int64)
    image, position = np.nonzero(first >= 0)
    words = sum(name.startswith("view_set_") for name in columns)
    sides = [
        _unpack(np.stack([columns[f"{side}_set_{word}"][image, position] for word in range(words)], axis=1))
        for side in ("reference", "view")
    ]
    return _of_sets(image, position, sides[0], sides[1], *first.shape)


def _of_sets(
    image: NDArray[np.int64],
    position: NDArray[np.int64],
    reference: NDArray[np.floating],
    view: NDArray[np.floating],
    num_images: int,
    num_places: int,
) -> Sides:
    # Experts that no set holds say nothing.
    occurs = reference.any(0) | view.any(0)
    sets = reference[:, occurs], view[:, occurs]
    return Sides(
        image,
        position,
        sets,
        None,
        jaccard_of_pairs(*sets),
        (sets[0] + sets[1]).sum(1) > 0,
        num_images,
        num_places,
    )


def different(rows: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Return the different sets ``(U, E)`` of rows ``(M, E)`` of zeros and ones, and which of them each row is.

    They come in the order of their rows, as from ``np.unique``. That compares entry by entry; here 64 entries are one
    number, which takes a fraction of the time.
    """
    bits = np.packbits(rows.astype(bool), axis=1)
    padded = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))))
    words = padded.view(">u8").astype(np.uint64)
    keys = words[:, 0] if words.shape[1] == 1 else words
    _, first, number = np.unique(
        keys, axis=0 if keys.ndim > 1 else None, return_index=True, return_inverse=True
    )
    return rows[first], number.reshape(-1)


def pack(member: Tensor) -> list[Tensor]:
    """Return sets ``(B, J, E)`` as bits, in as many int32 words ``(B, J)`` as they take."""
    import torch

    powers = 2 ** torch.arange(_BITS, device=member.device)
    return [
        (part.long() * powers[: part.shape[-1]]).sum(-1).to(torch.int32)
        for part in member.split(_BITS, dim=-1)
    ]


def _unpack(rows: NDArray[np.generic]) -> Array:
    """Return the sets ``(M, E)`` of rows of words ``(M, W)``, as ones and zeros."""
    bits = rows.astype(np.int64)[:, :, None] >> np.arange(_BITS) & 1
    return bits.reshape(len(rows), rows.shape[1] * _BITS).astype(np.float64)
