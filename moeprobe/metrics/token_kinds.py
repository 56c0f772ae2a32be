"""Which tokens of a reference and a view are compared, kind by kind: what all analyses of pairs begin with.

Axes: B images, T tokens, J pairs of tokens of an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moeprobe.inputs.modality import PREFIX
from moeprobe.inputs.regions import REGIONS

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.base import Columns
    from moeprobe.routing.record import LayerPair, LayerRouting


# Column of the token ids, where they are known.
TOKEN_ID = "token_id"
# Column of the number of experts, the same in every image.
EXPERTS = "experts"
# Stands in the place of a choice where there is no pair of tokens.
NO_PAIR = -2
# Tokens of a prompt, and those that a model generated.
PARTS = ("prompt", "generated")
# Beginning of the kinds of tokens that stand at some positions of a sequence.
POSITION = "position"
# Choices are kept as int16.
_MOST_EXPERTS = 2**15
# Numbers of pairs beside pairs that are in memory at once.
NUMBERS_AT_ONCE = 2**18


@dataclass(frozen=True, eq=False)
class Paired:
    """Pairs of tokens: ``reference`` and ``view`` ``(B, J)`` number them, ``present`` says which pairs there are.

    A pair with padding on either side does not count. Without a pair the numbers are arbitrary. ``first``: pair j is
    token ``first + j`` on both sides of every input; None where that is not so.
    """

    reference: Tensor
    view: Tensor
    present: Tensor
    first: int | None = None

    def of_reference(self, values: Tensor) -> Tensor:
        """Return the values ``(B, J, ...)`` of the reference's tokens, picked from all ``(B, T, ...)``."""
        return self._take(values, self.reference)

    def of_view(self, values: Tensor) -> Tensor:
        """Return the values ``(B, J, ...)`` of the view's tokens, picked from all ``(B, T, ...)``."""
        return self._take(values, self.view)

    def _take(self, values: Tensor, token: Tensor) -> Tensor:
        import torch

        if self.first is not None:
            # A slice is a view: aligned tokens need no copy.
            return values[:, self.first : self.first + token.shape[1]]
        return values[torch.arange(len(values), device=values.device)[:, None], token]


def patches(pair: LayerPair) -> Paired:
    """Return the pairs of corresponding patches, J = P."""
    return pair.once("patches", lambda: _patches(pair))


def _patches(pair: LayerPair) -> Paired:
    import torch

    prefix = pair.reference.num_prefix_tokens
    present = (pair.reference_patch >= 0) & (pair.view_patch >= 0)
    end = prefix + present.shape[1]
    # Slices only if both sides have all of the tokens; sequences may be shorter.
    if pair.aligned and min(pair.reference.valid.shape[1], pair.view.valid.shape[1]) >= end:
        token = torch.arange(prefix, end, device=present.device).expand_as(present)
        return _without_padding(pair, Paired(token, token, present, first=prefix))
    reference, view = (patch.clamp_min(0) + prefix for patch in (pair.reference_patch, pair.view_patch))
    return _without_padding(pair, Paired(reference, view, present))


def slices(layer: LayerRouting) -> dict[str, slice]:
    """Return where the tokens of each kind stand: patches (or tokens) and, where there are any, those before."""
    kinds, start = {layer.modality.token: slice(layer.num_prefix_tokens, None)}, 0
    for kind, count in layer.leading or ((PREFIX, layer.num_prefix_tokens),):
        if count:
            kinds[kind] = slice(start, start + count)
        start += count
    return kinds


def by_token_kind(pair: LayerPair) -> dict[str, Paired]:
    """Return the pairs of each kind of tokens: patches (or tokens), patches of each region if known, prefix tokens."""
    return dict(pair.once("kinds", lambda: _by_token_kind(pair)))


def _by_token_kind(pair: LayerPair) -> dict[str, Paired]:
    import torch

    every = patches(pair)
    kinds = {pair.view.modality.token: every}
    if pair.region is not None:
        for code, name in enumerate(REGIONS):
            kinds[name] = replace(every, present=every.present & (pair.region == code))
    if pair.generated is not None:
        for code, name in enumerate(PARTS):
            kinds[name] = replace(every, present=every.present & (pair.generated == code))
    leading = slices(pair.reference)
    del leading[pair.view.modality.token]
    for kind, part in leading.items():
        token = torch.arange(part.start, part.stop, device=every.view.device).expand(len(every.view), -1)
        present = torch.ones_like(token, dtype=torch.bool)
        kinds[kind] = _without_padding(pair, Paired(token, token, present, first=part.start))
    return kinds


def by_position(every: Paired) -> dict[str, Paired]:
    """Return the pairs at position 0, 1, 2 to 3, 4 to 7, and so on, of the tokens after the prefix."""
    import torch

    position = torch.arange(every.present.shape[1], device=every.present.device)
    kinds = {}
    start, end = 0, 1
    while start < len(position):
        name = f"{POSITION} {start}" if end == start + 1 else f"{POSITION} {start}-{end - 1}"
        inside = (position >= start) & (position < end)
        kinds[name] = replace(every, present=every.present & inside)
        # Powers of two: differences grow with the distance from the beginning.
        start, end = end, 2 * end
    return kinds


def differ(pair: LayerPair, paired: Paired) -> Tensor:
    """Return which pairs ``(B, J)`` of tokens choose another set of experts."""
    return unlike(pair, paired) & paired.present


def unlike(pair: LayerPair, paired: Paired) -> Tensor:
    """Return the same whether or not there is a pair, so that kinds of the same tokens share it."""
    # Sorted, since a set has no order.
    reference, view = (side.sort(-1).values for side in selected_experts(pair, paired))
    return (reference != view).any(-1)


def _without_padding(pair: LayerPair, paired: Paired) -> Paired:
    valid = paired.of_reference(pair.reference.valid) & paired.of_view(pair.view.valid)
    return replace(paired, present=paired.present & valid)


def selected_experts(pair: LayerPair, paired: Paired) -> tuple[Tensor, Tensor]:
    """Return what the reference's and the view's tokens chose, ``(B, J, K)`` each, whether or not there is a pair."""
    return pair.once(
        ("selected", paired),
        lambda: (paired.of_reference(pair.reference.selected), paired.of_view(pair.view.selected)),
    )


def choices(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    """Return columns with what either side's tokens chose, ``(B, J, K)``; -1 = nothing, ``NO_PAIR`` = there is none."""

    def columns() -> dict[str, Tensor]:
        absent = ~paired.present[..., None]
        reference, view = (side.masked_fill(absent, NO_PAIR) for side in selected_experts(pair, paired))
        return {"reference_selected": reference, "view_selected": view}

    return pair.once(("choices", paired), columns)


def num_experts(columns: Columns) -> int:
    """Return E; where a run does not say (older ones), a number that no choice exceeds."""
    return int(columns[EXPERTS].max(initial=1)) if EXPERTS in columns else _MOST_EXPERTS


def numbers(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    """Return columns that say how many experts there are, and which tokens the pairs are of.

    These are ``(B, J)`` on either side, or there is one that says that nothing moved. Where it is known, which token of
    the vocabulary the reference's is stands there too.
    """
    return pair.once(("numbers", paired), lambda: _numbers(pair, paired))


def _numbers(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    import torch

    unit = torch.ones(len(paired.present), dtype=torch.int64, device=paired.present.device)
    experts = {EXPERTS: unit * pair.view.num_experts}
    if pair.token_ids is not None:
        token_ids = paired.of_reference(pair.token_ids).to(torch.int32)
        experts[TOKEN_ID] = token_ids.masked_fill(~paired.present, -1)
    if pair.aligned:
        return experts | {"unmoved": unit}
    return experts | {
        f"{side}_token": token.to(torch.int32).masked_fill(~paired.present, -1)
        for side, token in (("reference", paired.reference), ("view", paired.view))
    }


@dataclass(frozen=True)
class Others:
    """Pairs of an image beside other pairs of it: ``apart[b, r, j]`` says whether pair r is compared with pair j.

    ``images`` and ``rows`` say which the first two axes are of; the third is of all J pairs.
    """

    images: slice
    rows: slice
    apart: Tensor


def pairs_apart(paired: Paired, *, entries: int = 1) -> Iterator[Others]:
    """Yield pairs of pairs of an image that are present and have no token in common: see ``trials.within_image``.

    Args:
        paired: the pairs, ``(B, J)``.
        entries: how many numbers two pairs take, so that each yielded block stays small.
    """
    images, pairs = paired.present.shape
    # Pairs of pairs grow with the square, so images and rows are cut into blocks.
    at_once = max(1, NUMBERS_AT_ONCE // max(1, pairs * entries))
    for image in range(0, images, step := max(1, at_once // max(1, pairs))):
        which = slice(image, image + step)
        for row in range(0, pairs, at_once):
            rows = slice(row, row + at_once)
            apart = paired.present[which, rows, None] & paired.present[which, None]
            for token in (paired.reference, paired.view):
                apart &= token[which, rows, None] != token[which, None]
            yield Others(which, rows, apart)


def sharing(paired: Paired, *, aligned: bool) -> Tensor:
    """Return with how many pairs of its image each pair ``(B, J)`` has a token in common, itself counted.

    A token is the same in all its pairs. So to sum products of each pair, on one side, and of all others without a
    token in common, on the other: take all with all, and subtract the product of each pair with itself so many times.

    Args:
        paired: pairs that count where they are present.
        aligned: pair j is token j on both sides, so that it has a token in common with itself alone.
    """
    import torch

    present = paired.present.long()
    if aligned or not present.numel():
        return present
    width = int(torch.maximum(paired.reference.max(), paired.view.max())) + 1
    first = torch.arange(len(present), device=present.device)[:, None] * width
    codes = [first + token for token in (paired.reference, paired.view)]
    reference, view = (_count_alike(code, present) for code in codes)
    # A pair with a token that is in no other one has both in common with itself alone.
    pair_counts = torch.minimum(reference, view)
    if bool((pair_counts > 1).any()):
        _, pair_code = torch.unique(codes[0] * width + paired.view, return_inverse=True)
        pair_counts = _count_alike(pair_code, present)
    # A pair that shares both tokens is in both counts, and must be subtracted once.
    return reference + view - pair_counts


def _count_alike(code: Tensor, present: Tensor) -> Tensor:
    """Return how many present pairs have the code of each pair ``(B, J)``; 0 where it is absent."""
    counts = present.new_zeros(int(code.max()) + 1).scatter_add_(0, code.flatten(), present.flatten())
    return counts[code] * present


class ProductsOfOthers:
    """Products of the vectors of each pair, on one side, and of all others without a token in common, on the other.

    Pairs with a token in common are taken out by sums over the pairs of each token, so that nothing grows with the
    square of J.

    Args:
        paired: pairs that are trials where they are present, ``(B, J)``.
        aligned: pair j is token j on both sides, so that it has a token in common with itself alone.
    """

    def __init__(self, paired: Paired, *, aligned: bool) -> None:
        import torch

        self._aligned = aligned
        self._groups: list[tuple[int, Tensor, Tensor]] = []
        if aligned or not paired.present.numel():
            return
        reference, view = (_beside_doubles(token) for token in (paired.reference, paired.view))
        images = torch.arange(len(view), device=view.device)
        width = int(torch.maximum(reference.max(), view.max())) + 1
        first = images[:, None] * width
        of_width = images.repeat_interleave(width)
        for token in (reference, view):
            self._groups.append((-1, (first + token).flatten(), of_width))
        # Those with both tokens in common are among either.
        pair_code = (first + reference) * width + view
        different, group = torch.unique(pair_code.flatten(), return_inverse=True)
        self._groups.append((1, group, different // width**2))

    def sums(self, reference: Tensor, view: Tensor) -> Tensor:
        """Return the summed products ``(B,)`` of vectors ``(B, J, E)`` of ``double``.

        No entry is below 0, and all are 0 where there is no trial.
        """
        if self._aligned:
            return (reference.sum(1) * view.sum(1) - (reference * view).sum(1)).sum(-1)
        total = (reference.sum(1) * view.sum(1)).sum(-1)
        for sign, group, image in self._groups:
            sums = [
                side.new_zeros(len(image), side.shape[-1]).index_add_(0, group, side.flatten(0, 1))
                for side in (reference, view)
            ]
            total.index_add_(0, image, sign * (sums[0] * sums[1]).sum(-1))
        # The rounding of differences may come to less than nothing.
        return total.clamp_min(0)


def double(values: Tensor) -> Tensor:
    """Return values in float64, in which sums of many of them are exact enough; on the CPU where a device has none."""
    return _beside_doubles(values).double()


def _beside_doubles(values: Tensor) -> Tensor:
    """Return values where there is float64: not on MPS."""
    return values.cpu() if values.device.type == "mps" else values
