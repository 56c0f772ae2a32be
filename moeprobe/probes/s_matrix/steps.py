"""How one pair of patches enters S: two views, the gates of a patch in both, their outer product.

An illustration, not an aggregate: the first image of the run and, of its corresponding patches, the pair nearest to the
center of view 1. Steps 1 and 2 of the PRC paper's Figure 3, in numbers of a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.modality import IMAGE
from moeprobe.probes.correspond.pairs import PairedPatches, pair_up

if TYPE_CHECKING:  # figures import this file, and must not import torch
    from moeprobe.adapters.base import Checkpoint
    from moeprobe.inputs.data.base import Example
    from moeprobe.probes.engine.run_spec import RunSpec


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


def steps_of(spec: "RunSpec", models: Sequence["Checkpoint"], example: "Example") -> list[Steps]:
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


def _steps(spec: "RunSpec", model: "Checkpoint", example: "Example") -> Steps | None:
    import torch

    from moeprobe.probes.engine.run_spec import recipe

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
        pixels=(reference.pixels.numpy(), view.pixels.numpy()),
        to_source=(reference.to_source, view.to_source),
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
