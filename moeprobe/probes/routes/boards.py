"""Whether the cells of a checkerboard are the patches of a model: else its colors and places say nothing."""

from collections.abc import Sequence

import torch

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.checkerboard import Checkerboard
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.probes.engine.applicability import routing_of_blank_input
from moeprobe.probes.engine.question import Question

# Of the range from 0 to 1: what resampling in float32 may leave.
_ROUNDING = 1e-3


def check_cells(question: Question, models: Sequence[Checkpoint], *, data: str) -> None:
    """Raise ``UserError`` unless each cell of the boards is one patch of every layer that is probed."""
    board = question.dataset
    assert isinstance(board, Checkerboard)
    for model in models:
        framing = model.framing
        assert isinstance(framing, Framing)
        pixels = framing.clean(board.example(0).image).pixels
        for routing in routing_of_blank_input(model, question.layers):
            grid = routing.grid
            if grid is not None and not _cells_are_patches(pixels, grid):
                raise UserError(
                    f"The cells of {data} ({board.cells} x {board.cells} of {board.cell} pixels) are not the patches "
                    f"of {model.name} ({_described(grid)}){_advice(grid, framing)}"
                )


def _cells_are_patches(pixels: torch.Tensor, grid: PatchGrid) -> bool:
    """Whether each patch of ``(3, S, S)`` has one color, and another one than its neighbors."""
    side = grid.patch_size
    if pixels.shape[1:] != (grid.rows * side, grid.columns * side):
        return False
    patches = pixels.unflatten(2, (grid.columns, side)).unflatten(1, (grid.rows, side)).transpose(2, 3)
    plain = patches.amax((3, 4)) - patches.amin((3, 4)) <= _ROUNDING
    colors = patches.mean((3, 4))
    apart = [(colors.diff(dim=axis).abs().amax(0) > _ROUNDING).all() for axis in (1, 2)]
    return bool(plain.all() and all(apart))


def _described(grid: PatchGrid) -> str:
    return f"{grid.rows} x {grid.columns} of {grid.patch_size} pixels"


def _advice(grid: PatchGrid, framing: Framing) -> str:
    """Return the end of the sentence: which boards fit, where any do."""
    cells = grid.rows / (framing.crop_fraction or 1)
    # The crop takes as much off either side.
    if grid.rows != grid.columns or cells % 1 or (cells - grid.rows) % 2:
        return "."
    return f"; use --data checkerboard:{grid.patch_size}x{cells:.0f}, or other --layers."
