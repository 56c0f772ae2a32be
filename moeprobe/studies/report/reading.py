"""Finished run folders, read back: what was asked, the tables, and the pictures.

A folder may come from somebody else, so nothing it names is followed out of it, and what does not fit is one
sentence. Kinds of runs are not listed here: whatever has a sidecar, tables and figures can be reported.
"""

import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.errors import UserError
from moeprobe.inputs.modality import Modality, modality_of
from moeprobe.results.finished import check_no_shard
from moeprobe.results.packed import find_run
from moeprobe.results.sidecars import read_sidecar
from moeprobe.runtime.characters import restored
from moeprobe.runtime.filenames import FINISHED, REQUEST
from moeprobe.runtime.paths import shortest_ends
from moeprobe.studies.report.pictures import Frame, Picture, file_of, read_frames, read_pictures

_NUMBERS = (
    "severity",
    "value",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "checkpoint_value",
    "reference_value",
    "p_holm",
    "detectable",
    "images",
    "trials",
)
_COLOR = re.compile("#[0-9A-Fa-f]{6}")
# What every row of a value needs, for the short tables; a CSV without these is shown as it is.
_VALUE_COLUMNS = {
    "checkpoint", "layer", "tokens", "metric", "null", "severity", "value", "ci_low", "ci_high", "images", "trials",
    "flag",
}  # fmt: skip

# A CSV with these is one of values.
_MARKS = {"metric", "value"}


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        label: the folder's name, with as many of its parents as tell it from the other runs.
        sidecar: request and provenance, as ``table.json`` holds them.
        csvs: each CSV as text (every cell a string), by file name; ``table.csv`` and ``comparison.csv`` first.
        files: the bytes of each CSV, by file name.
        table: the values with numbers as numbers; None where the run has none.
        comparison: the paired differences likewise.
        pictures: the figures, but for the frames.
        frames: a series of pictures per layer, by growing severity.
        miscolored: checkpoints that the figures show in another color than those of the report's other runs.
    """

    label: str
    sidecar: dict[str, Any]
    csvs: dict[str, pd.DataFrame]
    files: dict[str, bytes]
    table: pd.DataFrame | None
    comparison: pd.DataFrame | None
    pictures: list[Picture]
    frames: dict[str, list[Frame]]
    miscolored: Sequence[str] = ()

    @property
    def colors(self) -> dict[str, str]:
        """In which colors the figures show the checkpoints; empty where they have none."""
        return self.sidecar.get("colours", {})

    @property
    def request(self) -> dict[str, Any]:
        """What was asked."""
        return self.sidecar["request"]

    @property
    def kind(self) -> str:
        """The kind of run, e.g. ``match-ratio``."""
        return self.request["kind"]

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked, with what a comparison asked of its probe."""
        probe = self.request.get("probe")
        own = {name: given for name, given in self.request.items() if name not in ("probe", "checkpoints")}
        return {**probe, **own} if isinstance(probe, dict) else self.request

    @property
    def images(self) -> int | None:
        """Number of images that the values rest on; None where the run has none."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        return int(max(table["images"].max() for table in tables)) if tables else None

    @property
    def modality(self) -> Modality:
        """What the checkpoints read."""
        return modality_of(
            token
            for table in (self.table, self.comparison)
            if table is not None
            for token in table["tokens"].unique()
        )

    @property
    def gate(self) -> str | None:
        """The metric whose worsening a comparison was to report; None where none was named."""
        metric = self.sidecar.get("fail_if_worse")
        return metric if isinstance(metric, str) else None

    @property
    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """Provenance of each checkpoint, by name."""
        return self.sidecar.get("checkpoints", {})


def in_memory(table: pd.DataFrame, comparison: pd.DataFrame | None, sidecar: dict[str, Any]) -> Run:
    """Return a run as it would be read back, of what has just been measured; without files and figures."""

    def read(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(draw=["" if pd.isna(draw) else str(draw) for draw in rows["draw"]])

    return Run(
        label="",
        sidecar=sidecar,
        csvs={},
        files={},
        table=read(table),
        comparison=None if comparison is None else read(comparison),
        pictures=[],
        frames={},
    )


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Read finished runs, in the order given.

    Raises:
        UserError: none is given, one is given twice, or one is not a finished run of moeprobe.
    """
    if not folders:
        raise UserError("Name at least one output folder of a finished run.")
    paths = [Path(folder) for folder in folders]
    resolved = [path.resolve() for path in paths]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise UserError(f"{paths[number]} is given twice; name each run once.")
    labels = shortest_ends(resolved, each=True)
    return [_read(path, label) for path, label in zip(paths, labels, strict=True)]


def _read(path: Path, label: str) -> Run:
    sidecar = _read_sidecar(path)
    files = _by_name(path, path.glob("*.csv"))
    files = {
        name: files[name]
        for name in sorted(files, key=lambda n: (n != "table.csv", n != "comparison.csv", n))
    }
    csvs = {name: _read_csv(path / name, content) for name, content in files.items()}
    frames = read_frames(path, sidecar)
    shown = {frame.picture.name for series in frames.values() for frame in series}
    return Run(
        label=label,
        sidecar=sidecar,
        csvs=csvs,
        files=files,
        table=_values(csvs, "table.csv", path),
        comparison=_values(csvs, "comparison.csv", path),
        pictures=read_pictures(path, without=shown, animated=not frames),
        frames=frames,
    )


def _read_sidecar(path: Path) -> dict[str, Any]:
    sidecar = path / FINISHED
    packed = find_run(path)
    if packed is not None:
        out = path.parents[2]
        raise UserError(f"{path} is packed into {out}; report {out}, or compare {path}.")
    if not path.is_dir():
        raise UserError(f"There is no folder {path}; name the output folder of a finished run.")
    if not os.path.lexists(sidecar):
        check_no_shard(path)
        if (path / REQUEST).is_file():
            raise UserError(f"The run in {path} is not finished; give its command again, and it goes on.")
        within = [found.parent for depth in ("*", "*/*") for found in path.glob(f"{depth}/table.json")]
        # A comparison holds the run that it is made of.
        runs = sorted(run for run in within if run.parent not in within)
        if runs:
            raise UserError(
                f"{path} is not a run but holds {len(runs)}; name those to report, e.g. "
                f"moeprobe report {' '.join(map(str, runs[:3]))}"
            )
        raise UserError(f"{path} is not an output folder of moeprobe: it has no table.json.")
    content = read_sidecar(path)
    colors = content.get("colours", {})
    if not isinstance(colors, dict) or not all(_COLOR.fullmatch(str(one)) for one in colors.values()):
        raise UserError(f"{sidecar} names colors that are none; moeprobe did not write it.")
    return content


def _by_name(folder: Path, paths: Any) -> dict[str, bytes]:
    return {path.name: file_of(folder, path) for path in paths}


def _read_csv(path: Path, content: bytes) -> pd.DataFrame:
    if b"\0" in content:
        raise UserError(f"{path} holds bytes that are no text; it is damaged.")
    try:
        # As text: a checkpoint may be called "nan" or "007".
        return pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False).map(restored)
    except ValueError as error:
        raise UserError(f"Cannot read {path}: {error}.") from error


def _values(csvs: dict[str, pd.DataFrame], name: str, path: Path) -> pd.DataFrame | None:
    """Return a table of values with numbers as numbers; None where there is none or it is another kind of table."""
    if name not in csvs or csvs[name].empty or not set(csvs[name].columns) >= _MARKS:
        return None
    if missing := sorted(_VALUE_COLUMNS - set(csvs[name].columns)):
        raise UserError(f"{path / name} lacks a column that it was written with: {', '.join(missing)}.")
    table = csvs[name].copy()
    for column in _NUMBERS:
        if column in table:
            try:
                table[column] = [float(text) if text else math.nan for text in table[column]]
            except ValueError as error:
                raise UserError(
                    f"{path / name} has something else than numbers in {column}: {error}."
                ) from error
    return table
