"""Which part of a picture each image token of a vision-language model is made of.

A layout is proposed by what the processor gives, and proved by a trial: with the blocks of the picture tower silenced,
a change of one strip of pixels must change the tokens of that strip, and no others.

Axes: B pictures, T tokens, P image tokens, S pixels of a side.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.modality import BEFORE, SPECIAL, WORDS
from moeprobe.routing.record import LayerRouting

# A smaller part of the largest change is rounding.
_ROUNDING = 1e-3
# Pictures of a trial that run at once.
_AT_ONCE = 8


@dataclass(frozen=True)
class LayoutKind:
    """A kind of layout: how many rows and columns of tokens a picture has, None where it is of another kind.

    Attributes:
        name: for the sidecar.
        sides: gives rows and columns, from what the processor gives for one picture and the number of image tokens.
    """

    name: str
    sides: Callable[[Mapping[str, Tensor], int], tuple[int, int] | None]


def _merged_grid(outputs: Mapping[str, Tensor], tokens: int) -> tuple[int, int] | None:
    if "image_grid_thw" not in outputs:
        return None
    _, rows, columns = outputs["image_grid_thw"][0].tolist()
    # Separators may be image tokens too, which are then more than patches.
    merge = max(math.isqrt(rows * columns // tokens), 1)
    sides = rows // merge, columns // merge
    return sides if sides[0] * sides[1] == tokens else None


def _pooled_grid(outputs: Mapping[str, Tensor], tokens: int) -> tuple[int, int] | None:
    side = math.isqrt(tokens)
    return (side, side) if side * side == tokens else None


# The first whose number of tokens fits is tried.
KINDS = (
    LayoutKind("patches merged in squares, row by row", _merged_grid),
    LayoutKind("one square grid, row by row", _pooled_grid),
)
NUMBERED = "numbered: the place of a token in the picture is not known"


@dataclass(frozen=True)
class PictureLayout:
    """Where the tokens of a prompt with its picture stand.

    Attributes:
        name: the kind, for the sidecar.
        grid: of the image tokens.
        order: ``(T,)`` the tokens around the picture, kind by kind, then the image tokens.
        leading: kinds of the tokens around the picture, in that order, and how many there are.
        doubt: why the places of tokens are not known; empty where they are.
    """

    name: str
    grid: PatchGrid
    order: Tensor
    leading: tuple[tuple[str, int], ...]
    doubt: str = ""

    def arrange(self, layer: LayerRouting) -> LayerRouting:
        """Return the routing of sequences with their image tokens last, as patches of a picture."""
        order = self.order.to(layer.gates.device)
        return replace(
            layer.of_each_input(lambda values: values[:, order]),
            grid=self.grid,
            num_prefix_tokens=sum(count for _, count in self.leading),
            leading=self.leading,
        )

    def in_sequence(self, layer: LayerRouting) -> LayerRouting:
        """Return the routing that ``arrange`` arranged with its tokens in the order of the sequence again."""
        order_back = self.order.argsort().to(layer.gates.device)
        in_order = layer.of_each_input(lambda values: values[:, order_back] if values.ndim > 1 else values)
        return replace(in_order, grid=None, num_prefix_tokens=0, leading=())


def find_layout(
    ids: Tensor,
    outputs: Mapping[str, Tensor],
    *,
    image_id: int,
    special_ids: set[int],
    size: int,
    embed: Callable[[Tensor], Tensor] | None,
) -> PictureLayout:
    """Return the layout of a prompt ``(T,)`` with its picture; the image tokens are numbered where none is proved.

    Args:
        ids: the tokens.
        outputs: what else the processor gives for one picture.
        image_id: of the tokens that stand for the picture.
        special_ids: of special tokens.
        size: S.
        embed: returns what enters the first block ``(B, T, ...)`` for pictures ``(B, 3, S, S)``, while nothing in the
            tower mixes tokens; None = that cannot be tried.
    """
    is_image = ids == image_id
    tokens = is_image.nonzero().flatten()
    around = _kinds_around(ids, is_image, special_ids)
    order = torch.cat([*around.values(), tokens])
    leading = tuple((kind, len(numbers)) for kind, numbers in around.items())
    proposals = ((kind.name, kind.sides(outputs, len(tokens))) for kind in KINDS)
    name, sides = next(((name, sides) for name, sides in proposals if sides is not None), (NUMBERED, None))
    if sides is None:
        doubt = f"{len(tokens)} image tokens make no square grid"
    elif embed is None:
        doubt = "the model has no list of blocks, before which tokens could be looked at"
    else:
        doubt = _doubt(sides, tokens, len(ids), size, embed)
    if doubt or sides is None:
        # Patches of no extent have a number, and no place.
        return PictureLayout(NUMBERED, PatchGrid(1, len(tokens), 0), order, leading, doubt)
    return PictureLayout(name, PatchGrid(*sides, size // sides[1]), order, leading)


def _kinds_around(ids: Tensor, is_image: Tensor, special_ids: set[int]) -> dict[str, Tensor]:
    """Return the numbers of the tokens of each kind around a picture, without kinds that no token is of."""
    position = torch.arange(len(ids))
    before = position < is_image.nonzero()[0]
    special = torch.isin(ids, torch.tensor(sorted(special_ids), dtype=ids.dtype))
    after = ~before & ~is_image
    # What stands before a picture does not see it where tokens see only earlier ones.
    marks = {BEFORE: before, WORDS: after & ~special, SPECIAL: after & special}
    return {kind: position[mark] for kind, mark in marks.items() if mark.any()}


def _doubt(
    sides: tuple[int, int], tokens: Tensor, length: int, size: int, embed: Callable[[Tensor], Tensor]
) -> str:
    """Return why a grid of image tokens is not proved, empty where it is.

    A token that follows the pixels of one row of cells alone, and of one column alone, follows the pixels of one cell.
    """
    rows, columns = sides
    if rows != columns or size % columns:
        return (
            f"{rows} x {columns} image tokens do not divide a picture of {size} x {size} pixels into squares"
        )
    cell = size // columns
    grid = tokens.reshape(rows, columns)
    picture = torch.rand(3, size, size, generator=torch.Generator().manual_seed(0))
    views, expected = [], []
    for number in range(rows + columns):
        start = number % rows * cell
        strip: Any = (
            (slice(None), slice(start, start + cell)) if number < rows else (..., slice(start, start + cell))
        )
        view = picture.clone()
        view[strip] = 1 - view[strip]
        views.append(view)
        mark = torch.zeros(length, dtype=torch.bool)
        mark[grid[number] if number < rows else grid[:, number - rows]] = True
        expected.append(mark)
    changes = []
    for start in range(0, len(views), _AT_ONCE):
        # The unchanged picture is in each batch: another batch may be rounded differently.
        try:
            hidden = embed(torch.stack([picture, *views[start : start + _AT_ONCE]])).float().cpu()
        except UserError as error:
            return f"without the blocks of its picture tower: {str(error).rstrip('.')}"
        changes.append((hidden[1:] - hidden[0]).abs().flatten(2).amax(-1))
    change = torch.cat(changes)
    follows = change > _ROUNDING * change.max()
    if torch.equal(follows, torch.stack(expected)):
        return ""
    return "a change of some pixels changes other image tokens than those at their place"


@contextmanager
def unmixed(model: nn.Module, text_blocks: nn.ModuleList) -> Iterator[None]:
    """Let every block with attention outside of the text model return what it gets, so that tokens stay apart."""

    def silence(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        # Families call it differently, and it comes first.
        hidden = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    of_text = set(text_blocks.modules())
    with ExitStack() as stack:
        for blocks in model.modules():
            if not isinstance(blocks, nn.ModuleList) or blocks in of_text:
                continue
            for block in blocks:
                if any("Attention" in type(module).__name__ for module in block.modules()):
                    stack.callback(block.register_forward_hook(silence, with_kwargs=True).remove)
        yield
