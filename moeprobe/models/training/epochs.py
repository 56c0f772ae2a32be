"""Which images a training takes, in which order: each epoch is a fresh permutation."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.batches import Batch, Loading, RecipeByPlace, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import PairView, Recipe
from moeprobe.models.config import TrainConfig
from moeprobe.models.training.inputs import training_views
from moeprobe.runtime.seeds import generator


def training_batches(
    config: TrainConfig,
    data: ImageDataset,
    view: PairView,
    framing: Framing,
    *,
    steps: range,
    part: tuple[int, int],
    pin_memory: bool,
) -> Iterator[Batch]:
    """Yield what is trained on in some steps of a run: the whole batches, or one ``part`` (number, of) of each.

    An incomplete last batch of an epoch is dropped. One loader serves all epochs: steps would wait for its processes
    to start at each of them.
    """
    size = config.batch_size // part[1]
    order = _Order(config.seed, len(data), config.batch_size, steps=steps, part=part)
    views = partial(
        training_views, view=view, framing=framing, seed=config.seed, count=config.views_per_image
    )
    yield from batches(
        data,
        order,
        RecipeByPlace(partial(_of_epoch, views, order)),
        loading=Loading(size, config.data.workers, pin_memory=pin_memory),
    )


class _Order:
    """The numbers of the images of some steps, one after the other: all of each step, or one part of them.

    A permutation is drawn when its epoch comes: all of them together may not fit into memory.
    """

    def __init__(
        self, seed: int, num_images: int, batch_size: int, *, steps: range, part: tuple[int, int]
    ) -> None:
        self._seed, self._num_images, self._batch_size = seed, num_images, batch_size
        self._per_epoch = num_images // batch_size
        self._steps = steps
        self._size = batch_size // part[1]
        self._start = part[0] * self._size
        self._drawn: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._steps) * self._size

    def __getitem__(self, place: int) -> int:
        epoch = self.epoch(place)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, generator(self._seed, "order", draw=epoch).permutation(self._num_images)
        batch = self._steps[place // self._size] % self._per_epoch
        return int(self._drawn[1][batch * self._batch_size + self._start + place % self._size])

    def epoch(self, place: int) -> int:
        """Return the epoch of a place."""
        return self._steps[place // self._size] // self._per_epoch


def _of_epoch(views: partial[list[Sample]], order: _Order, place: int) -> Recipe:
    return partial(views, epoch=order.epoch(place))
