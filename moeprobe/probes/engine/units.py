"""What ``--unit`` names, of the images of a run or of the inputs of finished runs."""

from collections.abc import Sequence
from pathlib import Path

from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Dataset
from moeprobe.results.sampled_units import FOLDER, SampledUnits, by_folder, is_file_of_units, read_units


def refuse_units(options: Options, study: str) -> None:
    """Raise ``UserError`` where a study of several runs is asked to count units, of which its page would not speak."""
    if options.unit is not None:
        raise UserError(
            f"{study} counts inputs; leave {option('unit')} out, and compare one of its runs with it: moeprobe compare "
            "RUN --unit FILE."
        )


def units_of_dataset(unit: str | None, dataset: Dataset, indices: Sequence[int]) -> SampledUnits | None:
    """Return the units of some images of a data set; None = the images.

    Raises:
        UserError: there is no such column or file, or an image has no unit.
    """
    if unit is None:
        return None
    names = [dataset.image_ids[index] for index in indices]
    if unit in dataset.column_names:
        values = dataset.column(unit)
        of_column = SampledUnits(unit, {dataset.image_ids[index]: values[index] for index in indices})
        return of_column.of(names, source=f"The column {unit}")
    return units_of_inputs(unit, names, columns=dataset.column_names)


def units_of_inputs(
    unit: str | None, image_ids: Sequence[str], *, columns: Sequence[str] = ()
) -> SampledUnits | None:
    """Return the units of inputs by their names alone; None = the inputs.

    Args:
        unit: a file, or ``folder``.
        image_ids: their names.
        columns: which else could have been named, for the sentence.

    Raises:
        UserError: there is no such file, or an input has no unit.
    """
    if unit is None:
        return None
    if is_file_of_units(unit):
        return read_units(Path(unit)).of(image_ids, source=unit)
    if unit == FOLDER:
        return by_folder(image_ids)
    names = ", ".join([FOLDER, *columns])
    raise UserError(
        f"There is no column {unit!r} here; {option('unit')} takes {names}, or a CSV with the columns image_id and "
        "unit."
    )
