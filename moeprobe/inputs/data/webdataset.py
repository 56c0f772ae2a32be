"""WebDataset: images in tar shards, found at random by the offset of their member; nothing is extracted.

``webdataset:LOCATION``, where LOCATION is

* a folder with ``<split>-*.tar`` or ``<split>/*.tar``,
* a glob pattern, ``/data/flowers-*.tar``,
* a brace pattern, ``/data/train-{000000..000127}.tar`` or ``/data/{train,val}-0.tar``: every shard must be there.

A shard belongs to the split that is a word of its name (``imagenet-train-0001.tar``), or the name of its folder.
Where no shard of a pattern names a split, all form the split ``test``, and there is no other.

A record is the members that share a name up to its first dot: one image, and its label in ``.cls`` (an integer as
text) or under ``"label"`` in ``.json``. Nothing else in a shard is looked at, pickles least of all.
"""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, as_labels, check_split
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.inputs.data.readers.shards import ShardRecord, find_shards, read_index, split_of


class Webdataset(ImageDataset):
    """Tar shards (WebDataset): a folder, a glob pattern or a brace pattern.

    Every shard is read through once, for its headers and labels; after that an image costs one seek. A shard is opened
    again for each image, which costs little next to decoding: workers share no file position, and thousands of shards
    need no thousands of open files. Image ids are ``shard/key``, or ``split/shard/key`` where a folder names the
    split; class names are the numbers from 0 to the highest label of the split.
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        shards = find_shards(location)
        split_by_shard = {shard: split_of(shard) for shard in shards}
        if not any(split_by_shard.values()):
            split_by_shard = dict.fromkeys(shards, "test")
        check_split(split, [name for name in self.splits if name in split_by_shard.values()])
        self._shards = [shard for shard in shards if split_by_shard[shard] == split]
        records = [
            (number, record) for number, shard in enumerate(self._shards) for record in read_index(shard)
        ]
        if not records:
            raise UserError(f"There are no images in the shards of {location!r} for the split {split!r}.")
        # Columns, not objects: an ImageNet of records weighs on every worker.
        self._where = np.array(
            [(number, record.offset, record.size) for number, record in records], dtype=np.int64
        )
        self._labels = [record.label for _, record in records]
        self.image_ids = [f"{_prefix(self._shards[number])}/{record.key}" for number, record in records]
        self._check_unique(records)
        highest = max((label for label in self._labels if label is not None), default=None)
        self.class_names = None if highest is None else tuple(str(label) for label in range(highest + 1))

    def example(self, index: int) -> Example:
        """Return record ``index``, in the order of the shards and of the records in them."""
        number, offset, size = (int(value) for value in self._where[index])
        name = f"{self.image_ids[index]!r} of {str(self._shards[number])!r}"
        try:
            with self._shards[number].open("rb") as file:
                file.seek(offset)
                content = file.read(size)
        except OSError as error:
            raise UserError(f"The image {name} cannot be read: {error.strerror}.") from error
        return Example(
            open_rgb(io.BytesIO(content), name=name), self.image_ids[index], label=self._labels[index]
        )

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every image."""
        return as_labels(self._labels)

    def _check_unique(self, records: list[tuple[int, ShardRecord]]) -> None:
        shard_by_id: dict[str, int] = {}
        for image_id, (number, _) in zip(self.image_ids, records, strict=True):
            first = shard_by_id.setdefault(image_id, number)
            if first != number:
                raise UserError(
                    f"{str(self._shards[first])!r} and {str(self._shards[number])!r} both hold {image_id!r}; "
                    "rename one of the shards."
                )


def _prefix(shard: Path) -> str:
    """Return what the shard contributes to the id of its images."""
    in_folder = split_of(Path(shard.name)) is None and split_of(shard) is not None
    return f"{split_of(shard)}/{shard.stem}" if in_folder else shard.stem
