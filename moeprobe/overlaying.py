"""The overlay: a few images with the expert of each patch drawn in."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe import exhibits
from moeprobe.analyses.overlay import Overlay
from moeprobe.data._files import Files
from moeprobe.data.base import ImageDataset
from moeprobe.errors import UserError
from moeprobe.files import write_json
from moeprobe.loading import Model, Options, load_models
from moeprobe.probing import make_probe, make_request
from moeprobe.runs import OutputFolder, provenance
from moeprobe.tables import write_csv


@dataclass(frozen=True)
class OverlayResult:
    """What an overlay shows: the overlays themselves, a row per patch, and the files written."""

    overlays: list[Overlay]
    table: pd.DataFrame
    files: list[Path]


def overlay(
    models: Sequence[Model],
    *,
    data: str = "digits",
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = 4,
    view: str = "gaussian_noise",
    severity: float = 0.2,
    options: Options | None = None,
    **changes: Any,
) -> OverlayResult:
    """Show which expert each patch chooses on the clean and on the perturbed image.

    Args:
        models: checkpoints, side by side.
        data: data set, used unless ``files`` are given.
        images: names of images of the data set; none = ``count`` seeded random ones.
        files: image files of the user's own.
        count: how many random images.
        view: a view with a severity.
        severity: its severity.
        options: common options; ``changes`` are applied to them by name.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    from moeprobe.figures import save
    from moeprobe.figures.overlay import draw

    options = dataclasses.replace(options or Options(), **changes)
    if count < 1:
        raise UserError(f"The number of images must be positive; got {count}.")
    loaded = load_models(models, options)
    question = make_probe("sweep", loaded, data=data, view_name=view, severities=(severity,), options=options)
    dataset: ImageDataset = Files(files) if files else question.dataset
    named = bool(files or images)
    chosen = choose_images(dataset, images=images, data=data) if named else question.indices[:count]
    question = dataclasses.replace(question, dataset=dataset, indices=chosen)
    request = make_request("overlay", data, question, options, loaded)
    request |= {"images": [dataset.image_ids[index] for index in chosen]}
    folder = None if options.out is None else OutputFolder(options.out, request, overwrite=options.overwrite)
    shown = exhibits.overlays(question, loaded)
    table = exhibits.overlay_table(shown)
    written: list[Path] = []
    if folder is not None:
        for layer in dict.fromkeys(item.layer for item in shown):
            figure = draw(
                [item for item in shown if item.layer == layer],
                title=f"{layer}: {view} at severity {severity:g}",
            )
            written += save(figure, folder.path / "figures" / f"overlay-{layer}")
        write_csv(folder.path / "patches.csv", table)
        written.append(folder.path / "patches.csv")
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": {model.name: dict(model.provenance) for model in loaded},
        }
        write_json(folder.path / "table.json", sidecar | provenance())
    return OverlayResult(shown, table, written)


def choose_images(dataset: ImageDataset, *, images: Sequence[str], data: str) -> list[int]:
    """Return the positions of the images called so; of all where none is named.

    Raises:
        UserError: there is no such image; the sentence shows what names look like.
    """
    return [_position(dataset, name, data) for name in images] or list(range(len(dataset)))


def _position(dataset: ImageDataset, name: str, data: str) -> int:
    names = list(dataset.image_ids)
    if name not in names:
        example = f" {names[0]}" if names else " nothing: it is empty"
        raise UserError(f"There is no image {name!r} in {data}; names look like{example}.")
    return names.index(name)
