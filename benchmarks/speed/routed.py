"""What the part ``models`` runs: one model, into which the MoE layers of each cell of a sweep are put in turn.

All cells share every parameter but those of the routers, so a layout needs the memory of one model however many
routers it is timed with. Parameters and pixels are random.

Axes: B rows of a batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models import grid
from moeprobe.models.config import TrainConfig
from moeprobe.models.grid import TrainingGrid
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.timm import VisionTransformer
from moeprobe.models.training.objectives.base import BatchViews
from moeprobe.models.training.start import make_objective
from moeprobe.models.training.tasks import Classification

# Of data that nobody opens.
_CLASSES = 10


def cells_of(sweep: str, layout: str | None) -> Sequence[TrainConfig]:
    """Return the cells of a sweep, one of each group, of another base where a ``layout`` is given.

    Raises:
        UserError: there is no such sweep or configuration, or its cells have no routers.
    """
    base = [] if layout is None else [f"base={layout}"]
    found: TrainingGrid = grid.load(sweep, ["seeds=[0]", *base])
    dense = [cell.name for cell in found.cells if cell.model.dense]
    if dense:
        raise UserError(f"{dense[0]} of the sweep {found.name!r} has no router to be timed.")
    return found.cells


class Routed:
    """A model with random parameters, and the MoE layers of all cells.

    Args:
        cells: the trainings, which differ in how they route alone.
        images: source images of a step; None = as many as the first cell has.
        device: where to compute.

    Raises:
        UserError: the cells differ in more.
    """

    def __init__(self, cells: Sequence[TrainConfig], *, images: int | None, device: str) -> None:
        torch.manual_seed(0)
        first = cells[0]
        self.model = _build(first)
        # Behind a head of zeros, gradients are so small that arithmetic on them is slow.
        nn.init.normal_(self.model.head.weight, std=0.02)
        self._cells = {cell.group: cell for cell in cells}
        self._layers = {cell.group: self._layers_of(cell, first) for cell in cells}
        self.model.to(device)
        for layers in self._layers.values():
            for layer in layers.values():
                layer.to(device)
        self._views = first.views_per_image
        number = images or first.batch_size
        size = self.model.patch_embed.img_size
        self.pixels = torch.randn(number * self._views, 3, *size).to(device)
        self._labels = torch.arange(len(self.pixels), device=device) % self.model.num_classes

    def use(self, group: str) -> None:
        """Put the layers of a cell into the model, and forget all gradients."""
        for name, layer in self._layers[group].items():
            self.model.get_submodule(name).mlp = layer
        self.model.zero_grad(set_to_none=True)

    def step(self, group: str) -> None:
        """Make the forward and the backward pass of a training step, with the cell's objective; no update."""
        self.model.train()
        cell = self._cells[group]
        task = Classification(cell, self.model, make_objective(cell))
        targets = nn.functional.one_hot(self._labels, self.model.num_classes).float()
        task.measure((self.pixels, self._labels, targets), self._all_views())["loss"].backward()

    def forward(self, group: str) -> None:
        """Run the model as in evaluation; ``group``'s layers are in it."""
        self.model.eval()
        with torch.inference_mode():
            self.model(self.pixels)

    def _layers_of(self, cell: TrainConfig, first: TrainConfig) -> dict[str, MoeLayer]:
        shared = moe_layers(self.model)
        if cell is first:
            return dict(shared)
        made = _build(cell)
        if _shapes(made) != _shapes(self.model) or cell.views_per_image != first.views_per_image:
            raise UserError(
                f"{cell.group} and {first.group} differ in more than their routing, which is all that is timed here; "
                "choose a sweep of routers."
            )
        layers = moe_layers(made)
        for name, layer in layers.items():
            layer.experts = shared[name].experts
        return dict(layers)

    def _all_views(self) -> BatchViews:
        embedding, images = self.model.patch_embed, len(self.pixels) // self._views
        size = torch.tensor([embedding.img_size[::-1]]).expand(images, 2).double().numpy()
        same = torch.eye(3, dtype=torch.float64).expand(images, 3, 3).numpy()
        rows, columns = embedding.grid_size
        patches = PatchGrid(rows, columns, embedding.patch_size[0])
        return BatchViews([same] * self._views, size, patches, self.model.num_prefix_tokens)


def _build(cell: TrainConfig) -> VisionTransformer:
    classes = cell.model.num_classes or _CLASSES
    return build_model(cell.model.model_copy(update={"num_classes": classes}))


def _shapes(model: nn.Module) -> dict[str, Any]:
    """Return the sizes of all parameters but those of routers."""
    return {name: tuple(one.shape) for name, one in model.named_parameters() if ".router." not in name}
