"""From a data set and a recipe of views to batches.

Views are made in the loader's workers, each image's from generators of its own, so a batch is the same for any
batch size and any number of workers.

Axes: B images, V views of each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from moeprobe.data.base import ImageDataset
from moeprobe.errors import UserError
from moeprobe.views.base import Sample

Recipe = Callable[[Image.Image, str], list[Sample]]


@dataclass(frozen=True)
class Batch:
    """V views of B images.

    Attributes:
        image_ids: names of the images.
        labels: ``(B,)`` int64, -1 = none.
        views: V tensors ``(B, 3, S, S)`` float32 in [0, 1].
        to_source: V arrays ``(B, 3, 3)``, the maps from each view to the source image.
        source_size: ``(B, 2)`` width and height of the sources in pixels.
        skipped: names of images that could not be read and are not in the batch.
    """

    image_ids: list[str]
    labels: Tensor
    views: list[Tensor]
    to_source: list[NDArray[np.float64]]
    source_size: NDArray[np.float64]
    skipped: list[str]


@dataclass(frozen=True)
class _Item:
    image_id: str
    label: int
    samples: list[Sample]
    size: tuple[int, int]


class _Items(Dataset[_Item | str]):
    """The chosen images of a data set, each through the recipe; a string names an image that was skipped."""

    def __init__(
        self, dataset: ImageDataset, indices: Sequence[int], recipe: Recipe, *, skip_bad_images: bool
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._recipe = recipe
        self._skip = skip_bad_images

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> _Item | str:
        index = int(self._indices[position])
        try:
            example = self._dataset.example(index)
        except UserError:
            if self._skip:
                return self._dataset.image_ids[index]
            raise
        samples = self._recipe(example.image, example.image_id)
        label = -1 if example.label is None else example.label
        return _Item(example.image_id, label, samples, example.image.size)


def _collate(items: list[_Item | str]) -> Batch:
    good = [item for item in items if isinstance(item, _Item)]
    num_views = len(good[0].samples) if good else 0
    return Batch(
        image_ids=[item.image_id for item in good],
        labels=torch.tensor([item.label for item in good], dtype=torch.int64),
        views=[torch.stack([item.samples[v].pixels for item in good]) for v in range(num_views)],
        to_source=[np.stack([item.samples[v].to_source for item in good]) for v in range(num_views)],
        source_size=np.array([item.size for item in good], dtype=np.float64).reshape(-1, 2),
        skipped=[item for item in items if isinstance(item, str)],
    )


def batches(
    dataset: ImageDataset,
    indices: Sequence[int],
    recipe: Recipe,
    *,
    batch_size: int,
    workers: int = 0,
    skip_bad_images: bool = False,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Yield the images ``indices`` of a data set, in that order, each as the recipe's views.

    Raises:
        UserError: an image cannot be read and ``skip_bad_images`` is off; the sentence names it.
    """
    loader: DataLoader[Any] = DataLoader(
        _Items(dataset, indices, recipe, skip_bad_images=skip_bad_images),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=pin_memory,
    )
    yield from loader
