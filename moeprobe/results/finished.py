"""Finished runs, read from their folders and put together as if they had been one run."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.errors import UserError
from moeprobe.results import stored
from moeprobe.results.columns import COLUMNS, COMPARISON_COLUMNS
from moeprobe.results.csv_files import read_rows, read_values
from moeprobe.results.folder import Result
from moeprobe.results.own_files import not_as_written
from moeprobe.results.packed import find_run, read_packed_images
from moeprobe.results.sampled_units import SampledUnits, read_units, units_of_runs
from moeprobe.results.sidecars import Request, check_names, read_sidecar
from moeprobe.results.stored import SumsStore, of_file, of_table
from moeprobe.runtime import files
from moeprobe.runtime.catalog import VIEWS, check_plugins
from moeprobe.runtime.characters import quote
from moeprobe.runtime.run_files import FINISHED, IMAGES, REQUEST, UNITS
from moeprobe.runtime.short_paths import shortest_ends

# Columns of texts in tables that hold no values of metrics; a name may look like a number.
_TEXTS = frozenset(["checkpoint", "image_id", "kind", "layer", "model", "number", "view_1"])


@dataclass(frozen=True)
class Measured:
    """The specification and results of a run over some checkpoints.

    Attributes:
        sums: per image.
        request: everything that the numbers depend on, without the checkpoints.
        checkpoints: name -> its entry in the run's sidecar (file, hash, training).
        runs: folder -> hash of its sums; empty where nothing was read from a folder.
        units: what intervals are over; None = the inputs.
    """

    sums: SumsStore
    request: Request
    checkpoints: dict[str, dict[str, Any]]
    runs: Mapping[str, str]
    units: SampledUnits | None = None

    @property
    def is_aligned(self) -> bool:
        """Whether the view leaves the patches where they are."""
        if "aligned" in self.request:  # of traces and of variants, which know it themselves
            return bool(self.request["aligned"])
        name = self.request.view_name
        return name != "clean" and VIEWS.get(name).aligned

    def training(self, key: str) -> dict[str, Any]:
        """Return what the checkpoints' training says under ``key``; only those that say anything."""
        values = {name: info.get("training", {}).get(key) for name, info in self.checkpoints.items()}
        return {name: value for name, value in values.items() if value not in (None, "")}


def is_run(path: Path) -> bool:
    """Whether a folder is one of a probe, finished or not."""
    return files.is_file(path / REQUEST) or is_finished(path)


def is_finished(path: Path) -> bool:
    """Whether a folder is one of a finished probe, or a packed run had it (see ``packed``)."""
    return files.is_file(path / FINISHED) or find_run(path) is not None


def read(path: Path) -> Measured:
    """Read one finished run, from its folder or, by the path that its folder had, from the packed runs.

    Raises:
        UserError: it is unfinished, is no probe's, or its sums per image are gone.
    """
    sidecar = read_sidecar(path)
    request, checkpoints, packed = sidecar.request, sidecar.checkpoints, sidecar.packed
    images = path / IMAGES
    if packed is not None:
        sums, digest = of_table(read_packed_images(packed)), packed.run.sha256
    elif files.is_file(images):
        sums, digest = of_file(images), files.sha256(images)
    else:
        raise UserError(
            f"{path} holds no {IMAGES}, which differences are computed from: it is a run of "
            f"{request.get('kind')}, or the file is gone; give the folder of a probe that has written one."
        )
    if missing := {"data", "split", "seed", "analyses", "view"} - request.keys():
        raise not_as_written(path / FINISHED, f"it lacks {', '.join(sorted(missing))}")
    for name in dict.fromkeys(cell.checkpoint for cell in sums):
        if name not in checkpoints:
            raise not_as_written(images, f"it is about {quote(name)}, which {FINISHED} does not name")
    check_plugins(path, request.get("plugins"))
    request.pop("checkpoints", None)
    units = read_units(path / UNITS) if files.is_file(path / UNITS) else None
    return Measured(sums, request, checkpoints, {str(files.display_path(path)): digest}, units)


def read_result(path: Path) -> Result:
    """Read one finished run of values as it was returned when it was computed; its figures are in its folder.

    Raises:
        UserError: its files cannot be read, or do not fit a run of values.
    """
    sidecar = read_sidecar(path)
    has_comparison = files.is_file(path / "comparison.csv")
    comparison = read_comparison(path) if has_comparison else None
    sums = of_file(path / IMAGES) if files.is_file(path / IMAGES) else SumsStore(())
    return Result(_read_values(path / "table.csv", sidecar), comparison, sums, sidecar)


def read_comparison(path: Path) -> pd.DataFrame:
    """Return the judged differences of a finished run, as they were written.

    Raises:
        UserError: they cannot be read, or do not fit a run.
    """
    return _read_values(path / "comparison.csv", read_sidecar(path), COMPARISON_COLUMNS)


def _read_values(path: Path, sidecar: Mapping[str, Any], extra: Iterable[str] = ()) -> pd.DataFrame:
    """Return a table of values: texts as they were, and numbers. ``extra`` are columns besides the common ones."""
    table = read_values(path)
    if missing := {*COLUMNS, *extra} - set(table):
        raise not_as_written(path, f"it lacks {', '.join(sorted(missing))}")
    if table.empty:
        raise not_as_written(path, "it holds no value")
    check_names(path, table, sidecar)
    return table


def read_table(path: Path) -> pd.DataFrame:
    """Return a table that a run wrote beside its values, such as one row per patch, as it was written.

    Raises:
        UserError: it cannot be read.
    """
    return read_rows(path, texts=_TEXTS)


def written_files(folder: Path, *names: str) -> list[str]:
    """Return the figures of a finished run, then the named files that it wrote."""
    extra_files = (folder / name for name in names if files.is_file(folder / name))
    return [str(path) for path in (*sorted((folder / "figures").iterdir()), *extra_files)]


def read_all(paths: Sequence[Path], *, with_units: bool = True) -> Measured:
    """Read finished runs that asked the same of different checkpoints.

    Checkpoints of one name in several runs are distinguished by the names of the runs' folders.

    Args:
        paths: their folders.
        with_units: whether intervals are over the units that the runs were measured with.

    Raises:
        UserError: a run cannot be read or is named twice, or two differ in more than their checkpoints.
    """
    real_paths = [files.resolve(path) for path in paths]
    for path, number in Counter(real_paths).items():
        if number > 1:
            raise UserError(f"{path} was named twice.")
    runs = [read(path) for path in paths]
    for path, run in zip(paths[1:], runs[1:], strict=True):
        _agree(paths[0], _shared_request(runs[0]), path, _shared_request(run))
    names = _names(real_paths, [list(run.checkpoints) for run in runs])
    checkpoints: dict[str, dict[str, Any]] = {}
    sums = []
    for run, renamed in zip(runs, names, strict=True):
        checkpoints |= {new: run.checkpoints[old] for old, new in renamed.items()}
        sums.append(run.sums.rename(renamed))
    digests = {path: digest for run in runs for path, digest in run.runs.items()}
    units = units_of_runs([run.units for run in runs]) if with_units else None
    return Measured(stored.concat(sums), runs[0].request, checkpoints, digests, units)


def _shared_request(run: Measured) -> dict[str, Any]:
    """Return what runs must have in common: the request, and how many images compete for a capacity."""
    groups = {info.get("group_images") for info in run.checkpoints.values()}
    request = run.request | {
        "group_images": sorted(map(str, groups)),
        # Nobody knows the precision of recorded routing.
        **({} if "recorded" in run.request else {"precision": run.request.precision}),
    }
    # No sum that is compared depends on what was drawn, on how many inputs show the noise floor, or on units.
    for key in ("figures", "floor_images", "unit"):
        request.pop(key, None)
    # Captures are compared trace by trace, so that a sentence need not show them all.
    captures = request.pop("recorded", {})
    return request | {f"the capture recorded as {name}": capture for name, capture in captures.items()}


def _agree(path: Path, first: Mapping[str, Any], other_path: Path, second: Mapping[str, Any]) -> None:
    for key in dict.fromkeys([*first, *second]):
        if first.get(key) != second.get(key):
            raise UserError(
                f"{path} and {other_path} were not probed alike: {key} is {_as_json(first.get(key))} in the first and "
                f"{_as_json(second.get(key))} in the second; compare runs that differ in their checkpoints alone."
            )


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _names(runs: Sequence[Path], checkpoints: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return, per run, checkpoint -> a name of its own among all: with as much of the run's path as that takes."""
    number = Counter(name for names in checkpoints for name in names)
    return [
        {name: name if number[name] == 1 else f"{run}/{name}" for name in names}
        for run, names in zip(shortest_ends(runs), checkpoints, strict=True)
    ]
