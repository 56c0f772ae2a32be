"""Several data sets as one, for a run that compares them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Dataset


class Joined(Dataset):
    """Data sets one after the other; a name begins with that of its data set, and labels are left out.

    Attributes:
        source_of: of each image the name of its data set, and its name there.
    """

    class_names = None

    def __init__(self, parts: Mapping[str, Dataset]) -> None:
        self._parts = list(parts.values())
        self.modality = self._parts[0].modality  # type: ignore[misc]
        self.is_encoded = any(part.is_encoded for part in self._parts)  # type: ignore[misc]
        self._places = [(part, index) for part in self._parts for index in range(len(part))]
        self.source_of: dict[str, tuple[str, str]] = {}
        for name, part in parts.items():
            for image_id in part.image_ids:
                joined = f"{name}/{image_id}"
                if joined in self.source_of:
                    raise UserError(
                        f"{' and '.join(parts)} both hold {joined}; name data sets that share nothing."
                    )
                self.source_of[joined] = name, image_id
        self.image_ids = list(self.source_of)

    def example(self, index: int) -> Any:
        """Return image ``index``, under its name here and without a label; see ``Dataset``."""
        part, part_index = self._places[index]
        return replace(part.example(part_index), image_id=self.image_ids[index], label=None)

    def starts(self) -> Sequence[int]:
        """Return the number of the first image of each data set."""
        return [sum(map(len, self._parts[:number])) for number in range(len(self._parts))]

    def content_hash(self) -> str:
        """Return a hash of those of the data sets; empty where none has one."""
        hashes = [part.content_hash() for part in self._parts]
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest() if any(hashes) else ""
