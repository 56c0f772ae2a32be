"""The picture of patch correspondence: two views of a few images, and which of their patches show the same content."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import load_model
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.open import content_of, open_images, open_view, pick_images
from moeprobe.inputs.view_names import parse_view
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.probes.correspond import LINES, PAIRS, Correspond
from moeprobe.probes.correspond.pairs import PairedPatches, pair_up
from moeprobe.probes.engine.checks import check_images
from moeprobe.probes.engine.origins import Origin, data_of, make_origin, origin_of
from moeprobe.probes.engine.run import Work
from moeprobe.probes.engine.run_spec import RunSpec, choose_images, recipe
from moeprobe.probes.overlay.record import shown_experts
from moeprobe.results.folder import OutputFolder
from moeprobe.results.showing import Figures, one_line
from moeprobe.results.sidecars import Sidecar
from moeprobe.runtime.catalog import is_foreign
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.seeds import random_state_kept

# The grid where no checkpoint says otherwise: that of V-MoE-S/32, 7 x 7 patches.
IMAGE_SIZE, PATCH_SIZE = 224, 32


@dataclass(frozen=True)
class CorrespondResult:
    """What a picture shows: the pairs by image, a row per patch of view 1, files, the data, the view, and its lines."""

    pairs: list[PairedPatches]
    table: pd.DataFrame
    files: list[Path]
    data: str
    view: str
    severity: float | None
    lines: int

    @property
    def title(self) -> str:
        """The title of the figure."""
        strength = "" if self.severity is None else f" at severity {self.severity:g}"
        return f"Corresponding patches: {self.view}{strength}"

    def plot(self) -> Figures:
        """Return the figure; nothing is written."""
        from moeprobe.probes.correspond.figure import draw

        return Figures(correspond=draw(self.pairs, title=self.title, lines=self.lines))

    def __repr__(self) -> str:
        return one_line("CorrespondResult", {"images": len(self.pairs), "files": len(self.files)})

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()


@dataclass(frozen=True)
class _Input:
    """What a model takes: how an image is brought to its size, and the patches.

    ``source`` says whose it is, ``origins`` what that one was trained on, ``model`` is itself; none without a
    checkpoint.
    """

    framing: Framing
    grid: PatchGrid
    source: dict[str, Any]
    origins: tuple[Origin, ...] = ()
    model: Checkpoint | None = None


class Matching(Work[CorrespondResult]):
    """The pairs of patches of two views of a few images."""

    def __init__(self, question: Correspond, options: Options) -> None:
        self.question, self.options = question, options
        self.model_input = model_input = _input(question)
        data = data_of(model_input.origins, question.data, files=question.files)
        opened = None if question.files else open_images(data, split=options.split)
        dataset, named_indices, data = pick_images(
            opened, images=question.images, files=question.files, data=data
        )
        if named_indices is None:
            named_indices = choose_images(dataset, limit=question.count, seed=options.seed)
        spec = _spec(dataset, question.view, question.severity, seed=options.seed)
        self.spec = spec = dataclasses.replace(spec, indices=named_indices)
        self.data = data
        self.request = {
            "kind": question.kind,
            "data": data,
            "split": options.split,
            "view": {"name": spec.view_name} | dataclasses.asdict(spec.view),  # type: ignore[call-overload]
            "severities": list(spec.severities),
            "seed": options.seed,
            "image_size": model_input.framing.size,
            "patch_size": model_input.grid.patch_size,
            "crop_fraction": model_input.framing.crop_fraction,
            "images": [spec.dataset.image_ids[index] for index in spec.indices],
            # Only where it differs, so that earlier pictures still are of the same request.
            **({} if question.lines == LINES else {"figures": {"lines": question.lines}}),
            **model_input.source,
            **content_of(question.files),
        }

    def compute(self, folder: OutputFolder | None, progress: Progress) -> CorrespondResult:
        """Find the pairs, image by image."""
        progress.start(self.question.kind, len(self.spec.indices))
        pairs = []
        for index in self.spec.indices:
            pairs.append(_pairs(self.spec, self.model_input, index))
            progress.advance(1)
        question = self.question
        table = pair_table(pairs)
        return CorrespondResult(pairs, table, [], self.data, question.view, question.severity, question.lines)

    def write(self, result: CorrespondResult, folder: OutputFolder) -> CorrespondResult:
        """Write a row per patch."""
        write_csv(folder.path / PAIRS, result.table)
        result.files.append(folder.path / PAIRS)
        return result

    def draw(self, result: CorrespondResult, folder: OutputFolder, progress: Progress) -> None:
        """Write the figure; it comes first among the files."""
        from moeprobe.results.figures import save_all

        result.files[:0] = save_all(result.plot(), folder.path / "figures", svg=self.options.svg)

    def sidecar_of(self, result: CorrespondResult) -> Sidecar:
        """Return the request and provenance."""
        return self.make_sidecar()


def _input(question: Correspond) -> _Input:
    """Return what the model takes or, without one, what the question says."""
    model, image_size, patch_size = question.model, question.image_size, question.patch_size
    if model is not None:
        if image_size is not None or patch_size is not None:
            raise UserError(
                f"The checkpoint says the size of image and patch; omit {option('image_size')} and "
                f"{option('patch_size')}."
            )

        if is_foreign(model):
            return _foreign_input(load_model(model))
        with random_state_kept():
            built, info = load(model)
        embedding: Any = built.patch_embed
        return _Input(
            Framing(embedding.img_size[0], info.model.crop_fraction),
            PatchGrid(embedding.grid_size[0], embedding.grid_size[1], embedding.patch_size[0]),
            {"checkpoints": {info.name: {"sha256": info.hash}}},
            (make_origin(info.name, {"path": info.path, "training": info.training}),),
            load_model(model),
        )
    size = IMAGE_SIZE if image_size is None else image_size
    patch = PATCH_SIZE if patch_size is None else patch_size
    if not 0 < patch <= size or size % patch:
        raise UserError(f"Patches must fill the image: got a patch size of {patch} for an image of {size}.")
    return _Input(Framing(size), PatchGrid(size // patch, size // patch, patch), {"checkpoints": {}})


def _foreign_input(model: Checkpoint) -> _Input:
    """Return the input of a model that is not ours, with the patches of its first MoE layer."""
    check_images([model], "there is nothing to draw")
    assert isinstance(model.framing, Framing)
    routing = model.model.trace(model.framing.blank(), logits=False)[1]
    grid = next(iter(routing.layers.values())).grid
    assert grid is not None
    source = {"checkpoints": {model.name: {"sha256": model.provenance.get("sha256")}}}
    return _Input(model.framing, grid, source, (origin_of(model),), model)


def _spec(dataset: Dataset, name: str, severity: float | None, *, seed: int) -> RunSpec:
    """Return the run specification: a pair of random views, or the clean image and one view."""
    view = open_view(name, dataset=dataset)
    if view.modality is not IMAGE:
        raise UserError(f"The view {name!r} perturbs {view.modality.plural}, which have no patches to draw.")
    if severity is None and not isinstance(view, PairView):
        raise UserError(
            f"The view {name!r} is compared with the clean image; say how strong it is, "
            f"e.g. {option('severity', view.severities[-1])}."
        )
    if severity is not None and not isinstance(view, SeverityView):
        raise UserError(f"The view {name!r} makes pairs and has no severity; omit {option('severity')}.")
    return RunSpec(
        dataset=dataset,
        indices=(),
        view_name=parse_view(name).name,
        view=view,
        severities=() if severity is None else (severity,),
        analyses=(),
        seed=seed,
    )


def _pairs(spec: RunSpec, model_input: _Input, index: int) -> PairedPatches:
    example = spec.dataset.example(index)
    reference, view = recipe(spec, model_input.framing)(example.image, example.image_id)
    experts, experts_of = _experts(model_input, [reference.pixels, view.pixels])
    return pair_up(
        image_id=example.image_id,
        names=("first view", "second view") if spec.is_pair else ("clean image", "perturbed image"),
        views=(reference, view),
        source_size=example.image.size,
        grid=model_input.grid,
        experts=experts,
        experts_of=experts_of,
    )


def _experts(
    model_input: _Input, pixels: Sequence[Tensor]
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]] | None, str]:
    """Return the expert of each patch ``(P,)`` of both views, in the first MoE layer of that grid, and what names it.

    None without such a layer.
    """
    if model_input.model is None:
        return None, ""
    _, routing = model_input.model.model.trace(torch.stack(list(pixels)), logits=False)
    names = [name for name, layer in routing.layers.items() if layer.grid == model_input.grid]
    if not names:
        return None, ""
    layer = routing.layers[names[0]]
    first, second = (shown_experts(layer, side)[layer.num_prefix_tokens :] for side in range(2))
    return (first, second), f"{names[0]} of {model_input.model.name}"


def pair_table(pairs: Sequence[PairedPatches]) -> pd.DataFrame:
    """Return one row per patch of view 1: its partner in view 2 (empty = none), and where its center is there."""
    rows = []
    for item in pairs:
        for patch, (partner, (x, y)) in enumerate(zip(item.partner.tolist(), item.points, strict=True)):
            row, column = divmod(patch, item.grid.columns)
            partner_cell = divmod(partner, item.grid.columns) if partner >= 0 else (None, None)
            rows.append(
                {
                    "image_id": item.image_id,
                    "view_1": item.names[0],
                    "row": row,
                    "column": column,
                    "partner_row": partner_cell[0],
                    "partner_column": partner_cell[1],
                    "x": x,
                    "y": y,
                }
            )
    return pd.DataFrame(rows).astype({"partner_row": "Int64", "partner_column": "Int64"})
