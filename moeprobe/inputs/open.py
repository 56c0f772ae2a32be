"""Open views and images by name."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Dataset, ImageDataset
from moeprobe.inputs.data.readers.naming import Files, open_data
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.view_names import parse_view
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.runtime.catalog import VIEWS
from moeprobe.runtime.files import open_regular
from moeprobe.runtime.schema import Plugin, make_plugin


def open_images(name: str, *, split: str) -> ImageDataset:
    """Open a data set of images by name; see ``open_data``.

    Raises:
        UserError: it holds anything else.
    """
    dataset = open_data(name, split=split)
    if not isinstance(dataset, ImageDataset):
        raise UserError(f"Images are needed here, and {name} holds {dataset.modality.plural}.")
    return dataset


def pick_images(
    dataset: Dataset | None, *, images: Sequence[str], files: Sequence[str | Path], data: str
) -> tuple[Dataset, list[int] | None, str]:
    """Return the data set that a user named, the numbers of named images (None = all), and its name.

    Args:
        dataset: the data set of ``images``; not needed for files.
        images: names of images of the data set.
        files: image files of the user's own.
        data: what the data set is called.

    Raises:
        UserError: an image is named twice, or does not exist, or images are named both ways.
    """
    if files and images:
        raise UserError(
            f"Images are named by {option('images')}, files of your own by {option('files', flag='--file')}: give "
            "one of the two."
        )
    for name, number in Counter([*images, *files]).items():
        if number > 1:
            raise UserError(f"The image {str(name)!r} is named twice.")
    if files:
        return Files(files), list(range(len(files))), "files"
    assert dataset is not None
    return dataset, [_find_image(dataset, name, data=data) for name in images] or None, data


def content_of(files: Sequence[str | Path]) -> dict[str, list[str]]:
    """Return the hashes of a user's files for a request, since an edited file keeps its name.

    Raises:
        UserError: one cannot be read.
    """
    hashes = []
    for file in files:
        with open_regular(Path(file)) as opened:
            hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return {"files": hashes} if hashes else {}


def _find_image(dataset: Dataset, name: str, *, data: str) -> int:
    names = list(dataset.image_ids)
    if name not in names:
        example = f" {names[0]}" if names else " nothing: it is empty"
        raise UserError(
            f"There is no image {name!r} in this split of {data}; names look like{example}. Give {option('split')} "
            "for another."
        )
    return names.index(name)


def open_view(name: str, *, dataset: Dataset | None = None, **parameters: Any) -> PairView | SeverityView:
    """Make a view by name, ``name:location`` where it needs a file, with parameters as ``name,key=value``.

    On data that must not be mirrored (digits) a view that flips is made not to.

    >>> from moeprobe import api
    >>> view = api.open_view("gaussian_noise", clip=False)
    >>> view, view.severities
    (GaussianNoise(clip=False), (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4))

    Raises:
        UserError: there is no such view, or it does not take these parameters.
    """
    view_name = parse_view(name)
    name, location = view_name.name, view_name.location
    parameters = view_name.parameters | parameters
    kind = VIEWS.get(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    if bool(location) != ("location" in fields):
        raise UserError(
            f"The view {name!r} takes no file; omit :{location}."
            if location
            else f"The view {name!r} needs a file: write {name}:PATH."
        )
    if location:
        parameters["location"] = location
    if dataset is not None and not dataset.flippable and "flip" in fields:
        if parameters.get("flip"):
            raise UserError(f"These images must not be mirrored, so {name} cannot flip them; omit flip.")
        parameters["flip"] = False
    return make_plugin(kind, Plugin(name=name, **parameters), what="view")


def mirroring_omitted(view: Mapping[str, Any]) -> bool:
    """Return whether a view that mirrors by default was made not to, by its name and fields as in a request."""
    # A field's default is an attribute of the class.
    return view.get("flip") is False and getattr(VIEWS.get(view["name"]), "flip", False)


def open_training_view(name: str, *, dataset: Dataset | None = None, **parameters: Any) -> PairView:
    """Make a view to train on, as ``open_view`` does.

    Raises:
        UserError: there is no such view, it does not take these parameters, or it makes no pairs of images.
    """
    view = open_view(name, dataset=dataset, **parameters)
    if not isinstance(view, PairView) or not view.random or view.modality is not IMAGE:
        raise UserError(f"The view {name!r} makes no random views of images to train on.")
    return view
