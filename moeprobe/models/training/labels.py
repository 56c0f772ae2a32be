"""Training images of which a part has labels: the same share of each class, drawn by the seed.

PRC needs no labels, so it can be taken over all images while the supervised loss is over the labeled ones: the
semi-supervised use that its paper names and does not try (Kada et al. 2025, section V).
"""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.runtime.seeds import generator


class PartlyLabeled(ImageDataset):
    """A data set that hides the labels of some images, or leaves those images out.

    Args:
        data: the whole data set.
        labeled: numbers of the images that keep their labels, ascending.
        unlabeled: whether the others are there, without labels.
    """

    def __init__(self, data: ImageDataset, labeled: NDArray[np.int64], *, unlabeled: bool) -> None:
        self._data = data
        self._kept = np.arange(len(data)) if unlabeled else labeled
        self._has_label = np.isin(self._kept, labeled)
        self.image_ids = [data.image_ids[number] for number in self._kept]
        self.class_names = data.class_names
        self.split_note = data.split_note
        self.flippable = data.flippable  # type: ignore[misc]  # of the data, not of the class

    def example(self, index: int) -> Example:
        """Return image ``index``; see ``Dataset``."""
        example = self._data.example(int(self._kept[index]))
        return example if self._has_label[index] else dataclasses.replace(example, label=None)

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every image ``(n,)``, -1 where it is hidden."""
        return np.where(self._has_label, self._data.labels()[self._kept], -1)


def choose_labeled(labels: NDArray[np.int64], share: float, *, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the images that keep their labels, ascending: this share of each class, at least one.

    A larger share holds a smaller one of the same seed. Images without a label have none to keep.
    """
    chosen = []
    for label in np.unique(labels[labels >= 0]):
        images = np.flatnonzero(labels == label)
        order = generator(seed, "labeled", draw=int(label)).permutation(len(images))
        chosen.append(images[order[: max(1, math.floor(share * len(images) + 0.5))]])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)
