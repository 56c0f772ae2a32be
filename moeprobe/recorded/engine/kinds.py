"""Kinds of tokens in recorded sequences with pictures: each kind is measured by itself, against chance within it.

Axes: n inputs of a block, T tokens, P tokens after the prefix.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from moeprobe.inputs.modality import MEDIA, TEXT, TOKEN_KINDS
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.results.sums import Cell
from moeprobe.routing.record import LayerPair, LayerRouting

# By kind, which tokens of some inputs are of it: ``(n, T)``.
Masks = Mapping[str, Tensor]
Sums = dict[Cell, dict[str, Tensor]]


def kinds_in(traces: Sequence[TraceFile]) -> tuple[str, ...]:
    """Return the kinds of tokens in recorded sequences; empty where no token is of a picture, a video or a sound."""
    numbers: set[int] = set()
    for trace in traces:
        # Patches of an image are one kind, and the tokens around it have theirs as the prefix.
        if all(layer.grid_rows is None for layer in trace.layers.values()):
            numbers |= trace.token_kinds()
    kinds = tuple(kind for number, kind in enumerate(TOKEN_KINDS) if number in numbers)
    return kinds if set(kinds) & set(MEDIA) else ()


def masks_of(blocks: Sequence[Block], kinds: Sequence[str]) -> Masks:
    """Return which tokens of some inputs are of each of these kinds, as any of their blocks says.

    Blocks are of the same inputs and tokens; where several know a kind, the first one's word counts.
    """
    numbers = np.full(blocks[0].valid.shape, -1, np.int8)
    for block in reversed(blocks):
        if block.kinds is not None:
            numbers = np.where(block.kinds >= 0, block.kinds, numbers)
    codes = torch.from_numpy(numbers)
    return {kind: codes == TOKEN_KINDS.index(kind) for kind in kinds}


def restrict(routing: LayerRouting, tokens: Tensor) -> LayerRouting:
    """Return a routing in which only some tokens ``(n, T)`` are valid."""
    return replace(routing, valid=routing.valid & tokens)


def pairs_by_kind(pair: LayerPair, masks: Masks) -> Iterator[tuple[str, LayerPair]]:
    """Yield each kind with the pair in which its tokens alone are valid; ``masks`` say which tokens it has."""
    for kind, mask in masks.items():
        yield kind, replace(pair, reference=restrict(pair.reference, mask), view=restrict(pair.view, mask))


def of_kind(sums: Sums, kind: str) -> Sums:
    """Return the sums of the ordinary tokens (``token``) under the name of a kind, and no others."""
    return {
        replace(cell, tokens=kind): columns for cell, columns in sums.items() if cell.tokens == TEXT.token
    }
