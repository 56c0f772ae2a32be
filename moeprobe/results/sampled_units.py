"""What was sampled where it is no single image: patients, videos, prompts, as a file or the images' folders say.

A run with ``--unit`` leaves ``units.csv`` beside its sums, so that later comparisons count the same units.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import plural_of
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import display_path, is_file, write_csv
from moeprobe.runtime.run_files import UNITS

_IMAGE, _UNIT = "image_id", "unit"
# The column that images have without a file: the folder in their names.
FOLDER = "folder"


@dataclass(frozen=True)
class SampledUnits:
    """The unit of each image.

    Attributes:
        name: what a unit is, e.g. "patient".
        unit_of: unit by image.
    """

    name: str
    unit_of: Mapping[str, str]

    def digest(self) -> str:
        """Return a hash of all units: intervals depend on them."""
        lines = (f"{name}\0{unit}" for name, unit in sorted(self.unit_of.items()))
        return hashlib.sha256("\n".join([self.name, *lines]).encode()).hexdigest()

    def request(self) -> dict[str, str]:
        """Return the entry of a request."""
        return {_UNIT: f"{self.name} {self.digest()}"}

    def of(self, image_ids: Iterable[str], *, source: str) -> Self:
        """Return the units of some images.

        Raises:
            UserError: one of them has no unit; ``source`` is where it lacks.
        """
        names = list(image_ids)
        lacking = [name for name in names if not self.unit_of.get(name)]
        if lacking:
            raise UserError(
                f"{source} has no {self.name} for {quote(lacking[0])} ({len(lacking):,} of {len(names):,} inputs lack "
                "one); add them, or leave these inputs out."
            )
        return type(self)(self.name, {name: self.unit_of[name] for name in names})

    def write(self, folder: Path) -> None:
        """Write them into a run's folder."""
        import pandas as pd

        columns = [_IMAGE, self.name]
        write_csv(folder / UNITS, pd.DataFrame(sorted(self.unit_of.items()), columns=columns))


def is_file_of_units(unit: str) -> bool:
    """Whether ``--unit`` names a file, and no column."""
    return unit.endswith(".csv") or is_file(Path(unit))


def read_units(path: Path) -> SampledUnits:
    """Read a CSV of ``image_id`` and one more column, which names what a unit is; of several, the column ``unit``.

    Raises:
        UserError: there is no such file, it has other columns, or an image has two units.
    """
    if not is_file(path):
        raise UserError(
            f"There is no file of units {str(path)!r}; write a CSV with the columns image_id and unit."
        )
    # Here, since it imports pandas, and most runs have no units.
    from moeprobe.results.csv_files import read_texts

    table = read_texts(path)
    columns = [name for name in table.columns if name != _IMAGE]
    if _IMAGE not in table.columns or (len(columns) != 1 and _UNIT not in columns):
        raise UserError(
            f"{display_path(path)} has the columns {', '.join(table.columns)}; name two of them image_id and unit."
        )
    name = columns[0] if len(columns) == 1 else _UNIT
    table = table[[_IMAGE, name]].drop_duplicates()
    twice = table[_IMAGE][table[_IMAGE].duplicated()]
    if len(twice):
        raise UserError(f"{display_path(path)} has two units for {quote(twice.iloc[0])}; keep one.")
    return SampledUnits(name, dict(zip(table[_IMAGE], table[name], strict=True)))


def by_folder(image_ids: Sequence[str]) -> SampledUnits:
    """Return the folder of each image in its name, e.g. ``patient-07`` of ``patient-07/left.png``.

    Raises:
        UserError: the names have no folders, or all the same, or some have none.
    """
    unit_of = {name: name.rpartition("/")[0] for name in image_ids}
    if len(set(unit_of.values())) < 2:
        raise UserError(
            f"All inputs are in one folder, as {quote(next(iter(image_ids), ''))}, so folders are no units; name a CSV "
            f"with the columns image_id and unit in {option(_UNIT)}."
        )
    outside = [name for name, unit in unit_of.items() if not unit]
    if outside:
        raise UserError(
            f"{quote(outside[0])} is in no folder, so it has no unit ({len(outside):,} of {len(unit_of):,} inputs "
            f"are in none); move it into one, or name a CSV with the columns image_id and unit in {option(_UNIT)}."
        )
    return SampledUnits(FOLDER, unit_of)


def units_of_runs(runs: Sequence[SampledUnits | None]) -> SampledUnits | None:
    """Return the units of finished runs together; None where none has any.

    Raises:
        UserError: they were sampled by different units.
    """
    first = runs[0]
    if any((units is None) != (first is None) for units in runs) or any(
        units is not None and first is not None and units.name != first.name for units in runs
    ):
        names = " and ".join(
            dict.fromkeys("images" if units is None else plural_of(units.name) for units in runs)
        )
        raise UserError(f"The runs count {names}; name one unit for all of them with {option(_UNIT)}.")
    if first is None:
        return None
    unit_of: dict[str, str] = {}
    for units in runs:
        for name, unit in ({} if units is None else units.unit_of).items():
            if unit_of.setdefault(name, unit) != unit:
                raise UserError(
                    f"The runs have two units for {quote(name)}; name a file of units with {option(_UNIT)}."
                )
    return SampledUnits(first.name, unit_of)
