"""The work of ``s-matrix``: S over all pairs of patches, and how one pair of them enters it.

Two views, the gates of a patch in both, their outer product: an illustration, not an aggregate. It is of the first
image of the run and, of its corresponding patches, of the pair nearest to the center of view 1. Steps 1 and 2 of the
PRC paper's Figure 3, in numbers of a model.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.modality import IMAGE
from moeprobe.probes.correspond.pairs import PairedPatches, pair_up
from moeprobe.probes.engine.batch_sums import readable_examples
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec, recipe
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import rename_items

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Steps:
    """One pair of patches in the first MoE layer of one model.

    Attributes:
        checkpoint: whose gates they are.
        layer: MoE layer.
        pairs: both views, and which of their patches correspond.
        patch: number of the patch in view 1; ``pairs`` has its partner.
        gates: ``(E,)`` r of the patch in view 1, and of its partner in view 2.
    """

    checkpoint: str
    layer: str
    pairs: PairedPatches
    patch: int
    gates: tuple[NDArray[np.float64], NDArray[np.float64]]

    @property
    def product(self) -> NDArray[np.float64]:
        """The outer product ``(E, E)`` of both gates; E times its mean over all pairs is S."""
        return np.outer(*self.gates)


class SMatrixMeasurement(Measurement[Result]):
    """Sums of outer products, and the steps of one pair of patches."""

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Return the result with a figure of one pair of patches besides."""
        steps = self._steps()

        def draw(result: Result) -> dict[str, "Figure"]:
            from moeprobe.probes.s_matrix.figure import draw_steps

            return self.probe.draw(result) | draw_steps(rename_items(steps, result.sidecar), result.table)

        return dataclasses.replace(result, drawing=draw)

    def _steps(self) -> list[Steps]:
        """Return the steps of the first image that can be read and whose views have patches in common."""
        candidates = (steps_of(self.spec, self.models, example) for example in readable_examples(self.spec))
        return next(filter(None, candidates), [])


def steps_of(spec: RunSpec, models: Sequence[Checkpoint], example: Example) -> list[Steps]:
    """Return the steps of one image for each model with gates that are a distribution over patches.

    None where the two views of the image have no patches in common.
    """
    candidates = (_steps(spec, model, example) for model in models)
    return [steps for steps in candidates if steps is not None]


def nearest_to_center(pairs: PairedPatches) -> int | None:
    """Return the patch of view 1 with a partner that is nearest to the center of the view; None where none has one."""
    paired = np.flatnonzero(pairs.partner >= 0)
    if not len(paired):
        return None
    middle = np.array([pairs.grid.columns, pairs.grid.rows]) * pairs.grid.patch_size / 2
    distance = np.square(pairs.grid.centers()[paired, :2] - middle).sum(1)
    return int(paired[distance.argmin()])


def _steps(spec: RunSpec, model: Checkpoint, example: Example) -> Steps | None:
    if spec.view is None or spec.view.modality is not IMAGE:
        return None
    reference, view = recipe(spec, model.framing)(example.image, example.image_id)
    _, routing = model.model.trace(
        torch.stack([reference.pixels, view.pixels]), layers=spec.layers_of(model.model), logits=False
    )
    layers = {
        name: layer
        for name, layer in routing.layers.items()
        if layer.gates_sum_to_one and layer.grid is not None and layer.num_experts > 1
    }
    if not layers:
        return None
    name, layer = next(iter(layers.items()))
    assert layer.grid is not None
    pairs = pair_up(
        image_id=example.image_id,
        names=("first view", "second view"),
        views=(reference, view),
        source_size=example.image.size,
        grid=layer.grid,
    )
    patch = nearest_to_center(pairs)
    if patch is None:
        return None
    gates = layer.gates[:, layer.num_prefix_tokens :].double().cpu().numpy()
    sides = (0, 1) if pairs.names[0] == "first view" else (1, 0)
    return Steps(
        checkpoint=model.name,
        layer=spec.label_of(model.model, name),
        pairs=pairs,
        patch=patch,
        gates=(gates[sides[0], patch], gates[sides[1], pairs.partner[patch]]),
    )
