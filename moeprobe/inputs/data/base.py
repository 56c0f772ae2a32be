"""What a data set is to moeprobe: images, or texts, that are found by index and known by a name that stays."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.modality import IMAGE, TEXT, Modality
from moeprobe.inputs.regions import MASK
from moeprobe.runtime.files import expand, is_folder
from moeprobe.runtime.similar_paths import did_you_mean_path

SPLITS = ("train", "val", "test")
# What folders, files and data sets of others call a split; the first that is there is taken.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}

Part = TypeVar("Part")


@dataclass(frozen=True)
class Example:
    """One image: RGB and 8 bits at its own size, its label if it has one, its foreground mask if there is one."""

    image: Image.Image
    image_id: str
    label: int | None = None
    mask: NDArray[np.bool_] | None = None  # (height, width), True on the foreground

    def __post_init__(self) -> None:
        # Views get the image alone, and some go by its mask.
        if self.mask is not None:
            self.image.info[MASK] = self.mask


@dataclass(frozen=True)
class TextExample:
    """One text, and its label if it has one."""

    text: str
    image_id: str
    label: int | None = None


class Dataset(ABC):
    """One split of a data set; of a text all is said that is said of an image here.

    A plug-in's constructor takes ``split`` and the ``location`` that follows the colon of ``name:location`` (a
    folder, a file pattern, the name of a data set on a hub); built-in data need none. It raises ``UserError`` for a
    split that does not exist, a location that is missing, unreadable or empty, and a wrong record count.

    Attributes:
        modality: what it holds.
        image_ids: one string per image that stays the same for ever: relative path, ``split/index``, record key.
        class_names: names in label order; None where the images have no labels.
        split_note: how the splits were made, where neither the publisher nor the user did.
        column_names: what else the data say of every image, e.g. its patient.
        superclasses: of each class the number of the group of classes that the publisher puts it in; None where there
            are none.
        flippable: whether a mirrored image is still an image of its class (handwritten digits are not).
        streamed: whether an image is reached past those before it alone, so that random ones take long.
        is_encoded: whether an image is decoded each time it is read, which takes about as long as a pass.
    """

    modality: ClassVar[Modality]
    image_ids: Sequence[str]
    class_names: tuple[str, ...] | None
    superclasses: Sequence[int] | None = None
    flippable: ClassVar[bool] = True
    streamed: ClassVar[bool] = False
    is_encoded: ClassVar[bool] = False
    split_note: str = ""
    column_names: Sequence[str] = ()
    splits: ClassVar[tuple[str, ...]] = SPLITS
    # A label per image, None or -1 = none; unset where a label is only known once its image is read.
    _labels: Any = None

    @abstractmethod
    def __init__(self, *, split: str, location: str | None = None) -> None: ...

    @abstractmethod
    def example(self, index: int) -> Any:
        """Return image ``index``, an ``Example`` (or a ``TextExample``).

        Raises:
            UserError: the file cannot be read; the sentence names it.
        """

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every image ``(n,)``, -1 = none.

        Data that keep their labels apart from their pixels, in ``_labels``, read no image for it.
        """
        if self._labels is not None:
            return as_labels(self._labels)
        return as_labels(self.example(index).label for index in range(len(self)))

    def column(self, name: str) -> Sequence[str]:
        """Return a column of ``column_names``, a text for every image ``(n,)``; empty where nothing is said."""
        raise NotImplementedError

    def in_order(self, indices: Sequence[int]) -> list[int]:
        """Return the images of a run in the order in which it takes them: as they come, unless that takes long."""
        return list(indices)

    def mask_hash(self, indices: Sequence[int]) -> str:
        """Return a hash of some images' masks, where those may change and the images' names do not; else empty."""
        return ""

    def content_hash(self) -> str:
        """Return a hash of all there is, where it may change and the names do not, and is read anyway; else empty."""
        return ""

    def __len__(self) -> int:
        return len(self.image_ids)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None where the images have no labels."""
        return None if self.class_names is None else len(self.class_names)


class ImageDataset(Dataset):
    """A data set of images."""

    modality = IMAGE

    @abstractmethod
    def example(self, index: int) -> Example:
        """Return image ``index``; see ``Dataset``."""


class TextDataset(Dataset):
    """A data set of texts."""

    modality = TEXT

    @abstractmethod
    def example(self, index: int) -> TextExample:
        """Return text ``index``; see ``Dataset``."""


def as_labels(labels: Iterable[int | None]) -> NDArray[np.int64]:
    """Return labels as an array ``(n,)``, -1 where there is none."""
    return np.array([-1 if label is None else label for label in labels], dtype=np.int64)


def by_split(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return the part of each split, by moeprobe's name of it, of parts by any of ``SPLIT_NAMES``."""
    return {
        split: next(parts[name] for name in names if name in parts)
        for split, names in SPLIT_NAMES.items()
        if any(name in parts for name in names)
    }


def check_split(split: str, available: Sequence[str]) -> None:
    """Raise ``UserError`` unless ``split`` is one of ``available``."""
    if split not in available:
        raise UserError(f"There is no split {split!r} here; choose one of {', '.join(available)}.")


def require_folder(location: str | None, *, name: str, layout: str) -> Path:
    """Return the folder that ``name:location`` points to.

    Raises:
        UserError: no location was given, or there is no folder there; the sentence says which layout is expected.
    """
    if not location:
        raise UserError(f"{name!r} needs a folder: write {name}:PATH, where PATH holds {layout}.")
    folder = expand(location)
    if not is_folder(folder):
        raise UserError(
            f"There is no folder {location!r} for {name!r}; it should hold {layout}.{did_you_mean_path(folder)}"
        )
    return folder
