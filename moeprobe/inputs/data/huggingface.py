"""Image data sets in the form of Hugging Face's library ``datasets`` (optional: the extra ``huggingface``).

``huggingface:LOCATION``, where LOCATION is, in this order,

* a folder that ``save_to_disk`` wrote, of a ``DatasetDict`` or of one ``Dataset``;
* a folder of parquet files, one split per word of their names (``train-00000-of-00001.parquet``, ``test/0.parquet``);
* the name of a data set on the hub (``uoft-cs/cifar10``): in the local cache, or with ``--download`` fetched.

Code that a data set brings along is never run.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, as_labels, check_split
from moeprobe.inputs.data.readers import hub_rows


class Huggingface(ImageDataset):
    """A data set of Hugging Face's ``datasets``: saved to disk, parquet files, or from the hub.

    Takes the column of type ``Image`` and the one of type ``ClassLabel``; without the latter, the images have no
    labels, and a label of -1 (the hub's sign for a hidden one) is none. ``val`` also goes by ``validation`` and
    ``valid``. A single ``Dataset`` is the split it says it is, or else ``test``. Image ids are ``split/index``.
    """

    is_encoded = True

    def __init__(self, *, split: str, location: str | None = None) -> None:
        datasets = hub_rows.library()
        if not location:
            raise UserError("'huggingface' needs a folder or a name: write huggingface:PATH_OR_NAME.")
        parts = hub_rows.splits_of(hub_rows.load(datasets, location))
        check_split(split, tuple(parts))
        rows = parts[split]
        self._columns = hub_rows.find_columns(datasets, rows.features, location)
        if len(rows) == 0:
            raise UserError(f"The split {split!r} of {location!r} is empty.")
        self.class_names = self._columns.class_names
        # Undecoded: moeprobe's reader treats transparency, 16 bits and EXIF alike for every data set.
        undecoded = datasets.Image(decode=False)
        self._rows = rows.select_columns(self._columns.names).cast_column(self._columns.image, undecoded)
        self._all_rows = rows
        self.column_names = tuple(name for name in rows.column_names if name not in self._columns.names)
        self._location = location
        self.image_ids = [f"{split}/{index}" for index in range(len(rows))]

    def example(self, index: int) -> Example:
        """Return row ``index`` of the split."""
        return self._columns.example(self._rows[index], self.image_ids[index], location=self._location)

    def column(self, name: str) -> Sequence[str]:
        """Return a column of the rows; only it is read."""
        return [
            "" if value is None else str(value) for value in self._all_rows.select_columns([name])[:][name]
        ]

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every row; only their column is read."""
        label = self._columns.label
        column = self._rows.select_columns([label])[:][label] if label else [None] * len(self)
        return as_labels(column).clip(min=-1)
