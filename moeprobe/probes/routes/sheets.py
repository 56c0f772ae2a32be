"""Single images, and which of their patches each expert has: kept as pixels and marks.

An illustration, not an aggregate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.checkerboard import Checkerboard
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.metrics.token_experts import entries, experts, knows_experts
from moeprobe.metrics.token_kinds import patches
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.run_spec import RunSpec, recipe
from moeprobe.routing import finite
from moeprobe.routing.correspondence import pair_up

# What somebody looks at.
MOST_SHEETS = 24


@dataclass(frozen=True)
class Sheet:
    """An image and the experts of its patches.

    Attributes:
        checkpoint: whose routing it is.
        image_id: name of the image.
        pixels: ``(S, S, 3)`` in [0, 1].
        marks: by layer, how much of each patch an expert has ``(E, rows, columns)``, in [0, 1].
    """

    checkpoint: str
    image_id: str
    pixels: NDArray[np.float32]
    marks: dict[str, NDArray[np.float64]]


def make_sheets(spec: RunSpec, models: Sequence[Checkpoint], indices: Sequence[int]) -> list[Sheet]:
    """Return the sheets of some images, checkpoint by checkpoint."""
    sheets = []
    for model in models if indices else ():
        loader = batches(
            spec.dataset,
            indices,
            recipe(spec, model.framing),
            loading=Loading(spec.batch_size),
            skip_bad_images=spec.skip_bad_images,
            group_images=model.model.group_images,
        )
        for batch in loader:
            if not batch.image_ids:
                continue
            routing = model.model.trace(batch.views[0], layers=spec.layers_of(model.model), logits=False)[1]
            finite.check(routing.layers, None, batch.image_ids, checkpoint=model.name)
            marks = {}
            for name, layer in routing.layers.items():
                if knows_experts(layer) and layer.grid is not None:
                    pair = pair_up(batch, layer, layer, 0, aligned=True, symmetric=False)
                    columns = {
                        key: column.cpu().numpy()
                        for key, column in experts(layer, patches(pair), name="sheet").items()
                    }
                    tokens, number = entries(columns, name="sheet")
                    shares = np.zeros((len(batch.image_ids), layer.grid.num_patches, number))
                    shares[tokens.image, tokens.token, tokens.expert] = tokens.weight
                    # A patch that several experts take is a patch of each of them.
                    shown = shares if layer.top_k == 0 else (shares > 0).astype(np.float64)
                    grid = layer.grid.rows, layer.grid.columns
                    label = spec.label_of(model.model, name)
                    marks[label] = shown.transpose(0, 2, 1).reshape(len(shown), number, *grid)
            sheets += [
                Sheet(
                    model.name,
                    image_id,
                    batch.views[0][row].numpy().transpose(1, 2, 0),
                    {name: values[row] for name, values in marks.items()},
                )
                for row, image_id in enumerate(batch.image_ids)
            ]
    return [sheet for sheet in sheets if sheet.marks]


# Whether the cells of a checkerboard are the patches of a model: else its colors and places say nothing.

# On a scale from 0 to 1, the error that resampling in float32 may leave.
_ROUNDING = 1e-3


def check_cells(spec: RunSpec, models: Sequence[Checkpoint], *, data: str) -> None:
    """Raise ``UserError`` unless each cell of the boards is one patch of every layer that is probed."""
    board = spec.dataset
    assert isinstance(board, Checkerboard)
    for model in models:
        framing = model.framing
        assert isinstance(framing, Framing)
        pixels = framing.clean(board.example(0).image).pixels
        for routing in routing_of_blank_input(model, spec.layers):
            grid = routing.grid
            if grid is not None and not _cells_are_patches(pixels, grid):
                raise UserError(
                    f"The cells of {data} ({board.cells} x {board.cells} of {board.cell} pixels) are not the patches "
                    f"of {model.name} ({_grid_in_words(grid)}){_advice(grid, framing)}"
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


def _grid_in_words(grid: PatchGrid) -> str:
    return f"{grid.rows} x {grid.columns} of {grid.patch_size} pixels"


def _advice(grid: PatchGrid, framing: Framing) -> str:
    """Return the end of the sentence: which boards fit, where any do."""
    cells = grid.rows / (framing.crop_fraction or 1)
    # The crop takes as much off either side.
    if grid.rows != grid.columns or cells % 1 or (cells - grid.rows) % 2:
        return "."
    return (
        f"; use {option('data', f'checkerboard:{grid.patch_size}x{cells:.0f}')}, or other {option('layers')}."
    )
