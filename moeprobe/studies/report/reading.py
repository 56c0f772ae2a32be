"""Finished run folders, read back: request, tables and pictures.

A folder may come from somebody else, so nothing it names is followed out of it, and what does not fit is one
sentence. Kinds of runs are not listed here: whatever has a sidecar, tables and figures can be reported.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.declarations import CLEAN
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TEXT, Modality
from moeprobe.judging import differences
from moeprobe.judging.headlines import HeadlineValues, RunTables, headlines_of
from moeprobe.judging.trainings import TRAININGS, read_claims
from moeprobe.results import finished
from moeprobe.results.columns import COMPARISON_COLUMNS, COUNTS
from moeprobe.results.csv_files import check_numbers, read_texts, read_values
from moeprobe.results.files_for_reports import CLASSES, PATCHES, PIXELS, TOKENS
from moeprobe.results.own_files import not_as_written
from moeprobe.results.packed import find_run
from moeprobe.results.sidecars import (
    NAMES,
    Sidecar,
    check_names,
    choose_names,
    names_in,
    read_sidecar,
    rename,
    rename_table,
)
from moeprobe.results.stored import count_rows
from moeprobe.runtime.files import is_file, is_folder, is_there, resolve
from moeprobe.runtime.run_files import FINISHED, IMAGES, REQUEST, SHARD
from moeprobe.runtime.short_paths import shortest_ends
from moeprobe.runtime.similar_paths import did_you_mean_path
from moeprobe.studies.report.pictures import Frame, Picture, file_of, read_frames, read_picture, read_pictures
from moeprobe.studies.tails import MATCHES, MOST_SUMS, Tails, tails_of

_COLOR = re.compile("#[0-9A-Fa-f]{6}")
# What every row of a value needs, for the short tables; a CSV without these is shown as it is.
_VALUE_COLUMNS = {
    "checkpoint", "layer", "tokens", "metric", "null", "severity", "value", "ci_low", "ci_high", "images", "trials",
    "flag",
}  # fmt: skip

_PATCH_INDICES = ("row", "token", "perturbed_expert", "clean_patch_expert", "clean_token_expert")
_PATCH_MARGINS = ("perturbed_margin", "clean_margin")
_CLASS_COLUMNS = {"checkpoint", "layer", "tokens", "class", "expert", "value", "ci_low", "ci_high", *COUNTS}
# A CSV with these is one of values.
_MARKS = {"metric", "value"}


@dataclass(frozen=True, kw_only=True)
class Run(RunTables):
    """A finished run, read from its folder; its tables have numbers as numbers.

    Attributes:
        label: the folder's name, with as many of its parents as tell it from the other runs.
        csvs: each CSV as text (every cell a string), by file name; ``table.csv`` and ``comparison.csv`` first.
        files: the bytes of each CSV, by file name.
        pictures: the figures, except the frames.
        frames: a series of pictures per layer, by growing severity.
        pixels: the images of an overlay, a row per image; None = there are none.
        misnamed: whether its figures were drawn with other names of checkpoints than the report's.
        trainings: the claims about trainings of a comparison; None = there are none.
        tails: quantiles over inputs of what changes; None where the run holds no such sums that can be read, or too
            many.
        miscolored: checkpoints that these figures show in another color than the report's other runs do.
    """

    label: str
    csvs: dict[str, pd.DataFrame]
    files: dict[str, bytes]
    pictures: list[Picture]
    frames: dict[str, list[Frame]]
    pixels: Picture | None = None
    misnamed: bool = False
    trainings: pd.DataFrame | None = None
    tails: Tails | None = None
    miscolored: Sequence[str] = ()

    @property
    def colors(self) -> dict[str, str]:
        """In which colors the figures show the checkpoints; empty where they have none."""
        return self.sidecar.colors

    @property
    def view(self) -> str:
        """The view in words, e.g. "gaussian noise"; empty where inputs are clean."""
        view = self.settings.get("view")
        name = view.get("name") if isinstance(view, dict) else view
        return name.replace("_", " ") if isinstance(name, str) and name != CLEAN else ""

    @property
    def modality(self) -> Modality:
        """What the checkpoints read."""
        return TEXT if TOKENS in self.csvs else super().modality

    @property
    def overlay(self) -> pd.DataFrame | None:
        """The patches of an overlay, or the tokens under the names of columns of patches; None where there are none."""
        if TOKENS in self.csvs:
            return self.csvs[TOKENS].rename(columns={"clean_token_expert": "clean_patch_expert"})
        return self.csvs.get(PATCHES)

    @cached_property
    def headlines(self) -> list[HeadlineValues]:
        """The headlines with their values; most parts of a report ask for them."""
        return headlines_of(self)

    @property
    def gate(self) -> str | None:
        """The metric whose worsening a comparison was to report; None where none was named."""
        return self.sidecar.fail_if_worse


def read_runs(folders: Sequence[str | Path], *, names: Sequence[str] | None = None) -> list[Run]:
    """Read finished runs, in the order given.

    Args:
        folders: the runs.
        names: what their checkpoints are called, in the order in which they come; None = as each run was told.

    Raises:
        UserError: none is given, one is given twice, or one is not a finished run of moeprobe.
    """
    if not folders:
        raise UserError("Name at least one output folder of a finished run.")
    paths = [Path(folder) for folder in folders]
    real_paths = [resolve(path) for path in paths]
    for number, path in enumerate(real_paths):
        if path in real_paths[:number]:
            raise UserError(f"{paths[number]} is given twice; name each run once.")
    labels = shortest_ends(real_paths, each=True)
    runs = [_read(path, label) for path, label in zip(paths, labels, strict=True)]
    if names is None:
        return [_with_other_names(run, names_in(run.sidecar)) for run in runs]
    checkpoints = list(dict.fromkeys(name for run in runs for name in run.checkpoints))
    called = choose_names(names, checkpoints)[NAMES]
    return [
        dataclasses.replace(
            _with_other_names(run, called),
            misnamed=any(names_in(run.sidecar).get(name, name) != called[name] for name in run.checkpoints),
        )
        for run in runs
    ]


def _read(path: Path, label: str) -> Run:
    sidecar = _read_sidecar(path)
    names = sorted(
        (file.name for file in path.glob("*.csv")), key=lambda n: (n != "table.csv", n != "comparison.csv", n)
    )
    files = {name: file_of(path, path / name) for name in names}
    csvs = {name: read_texts(path / name, content=content) for name, content in files.items()}
    for name in {PATCHES, TOKENS} & csvs.keys():
        _check_patches(path / name, csvs[name])
    if CLASSES in csvs:
        _check_classes(path / CLASSES, csvs[CLASSES])
    frames = read_frames(path, sidecar)
    frame_names = {frame.picture.name for series in frames.values() for frame in series}
    return Run(
        label=label,
        sidecar=sidecar,
        csvs=csvs,
        files=files,
        table=_values(csvs, "table.csv", path, files, sidecar),
        comparison=_values(csvs, "comparison.csv", path, files, sidecar),
        trainings=_trainings(csvs, path, files),
        tails=_tails(path, sidecar),
        pictures=read_pictures(path, without=frame_names, animated=not frames),
        frames=frames,
        pixels=read_picture(path, path / PIXELS) if is_there(path / PIXELS) else None,
    )


def _with_other_names(run: Run, names: Mapping[str, str]) -> Run:
    """Return a run whose checkpoints are called otherwise on the page; its files stay as they are."""
    if not names:
        return run
    run = rename(run, names)
    if run.kind == "compare" and "verdicts" in run.sidecar and run.comparison is not None:
        within = run.sidecar.get("equivalent_within")
        # Groups of trainings have no other names.
        over_trainings = [
            verdict
            for verdict in run.sidecar["verdicts"]
            if isinstance(verdict, dict) and verdict.get("trainings")
        ]
        of_pairs = differences.sentences(run.comparison, equivalent_within=within).to_dict("records")
        run.sidecar["verdicts"] = [*over_trainings, *of_pairs]
    csvs = {name: rename_table(table, names) for name, table in run.csvs.items()}
    tails = run.tails
    if tails is not None:
        tails = dataclasses.replace(tails, table=rename_table(tails.table, names))
    return dataclasses.replace(run, csvs=csvs, tails=tails)


def _tails(path: Path, sidecar: Sidecar) -> Tails | None:
    """Return the tails of a run with sums of matches; None where they cannot be read, or would take long."""
    if not is_file(path / IMAGES) or not {*sidecar.request.analyses} & {*MATCHES}:
        return None
    try:
        # Before anything else is read, since a run's sums are hashed as a whole.
        if count_rows(path / IMAGES) > MOST_SUMS:
            return None
        measured = finished.read(path)
        return tails_of(measured.sums, measured.request, units=measured.units)
    except UserError:
        # Nothing else of a report needs the sums, or the plug-ins that they were made with.
        return None


def _read_sidecar(path: Path) -> Sidecar:
    sidecar = path / FINISHED
    packed = find_run(path)
    if packed is not None:
        out = path.parents[2]
        raise UserError(f"{path} is packed into {out}; report {out}, or compare {path}.")
    if not is_folder(path):
        raise UserError(
            f"There is no folder {path}; name the output folder of a finished run.{did_you_mean_path(path)}"
        )
    if not is_there(sidecar) and not is_there(path / SHARD):
        if is_file(path / REQUEST):
            raise UserError(f"The run in {path} is not finished; give its command again to resume it.")
        if runs := _runs_below(path):
            count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
            raise UserError(
                f"{path} is no run but a folder of {count}. Name the runs to report, e.g. "
                f"moeprobe report {' '.join(map(str, runs[:3]))}"
            )
        raise UserError(f"{path} is not an output folder of moeprobe: it has no table.json.")
    content = read_sidecar(path)
    colors = content.get("colours", {})
    if not isinstance(colors, dict) or not all(_COLOR.fullmatch(str(color)) for color in colors.values()):
        raise UserError(f"{sidecar} names colors that are none; moeprobe did not write it.")
    return content


def _runs_below(path: Path) -> list[Path]:
    """Return the runs in a folder and in its folders, in the order of their names, without parts of a run."""
    runs = [
        sidecar.parent
        for depth in ("*", "*/*")
        for sidecar in path.glob(f"{depth}/{FINISHED}")
        if _can_be_read(sidecar.parent)
    ]
    # A comparison holds the run that it is made of.
    return sorted(run for run in runs if run.parent not in runs)


def _can_be_read(run: Path) -> bool:
    try:
        read_sidecar(run)
    except UserError:
        return False
    return True


def _check_patches(path: Path, patches: pd.DataFrame) -> None:
    """Raise ``UserError`` unless the numbers of the patches or tokens of an overlay are some."""
    check_numbers(path, patches, integers=["column"], numbers=["severity"], required=True)
    check_numbers(path, patches, integers=_PATCH_INDICES, numbers=_PATCH_MARGINS, required=False)


def _check_classes(path: Path, classes: pd.DataFrame) -> None:
    """Raise ``UserError`` unless each expert's share of a class is a number; of few images it has no interval."""
    if missing := sorted(_CLASS_COLUMNS - set(classes.columns)):
        raise not_as_written(path, f"it lacks {', '.join(missing)}")
    check_numbers(path, classes, integers=COUNTS, numbers=["value"], required=True)
    check_numbers(path, classes, numbers=["ci_low", "ci_high"], required=False)


def _trainings(
    csvs: Mapping[str, pd.DataFrame], path: Path, files: Mapping[str, bytes]
) -> pd.DataFrame | None:
    """Return the claims about trainings with numbers as numbers; None where there are none."""
    return read_claims(path / TRAININGS, content=files[TRAININGS]) if TRAININGS in csvs else None


def _values(
    csvs: dict[str, pd.DataFrame], name: str, path: Path, files: Mapping[str, bytes], sidecar: dict[str, Any]
) -> pd.DataFrame | None:
    """Return a table of values with numbers as numbers; None where there is none or it is another kind of table."""
    if name not in csvs or csvs[name].empty or not set(csvs[name].columns) >= _MARKS:
        return None
    if missing := sorted(_VALUE_COLUMNS - set(csvs[name].columns)):
        raise not_as_written(path / name, f"it lacks {', '.join(missing)}")
    if "reference" in csvs[name] and not set(csvs[name].columns) >= set(COMPARISON_COLUMNS):
        raise UserError(
            f"{path / name} has no verdicts: an earlier version wrote it. Repeat the run with "
            f"{option('overwrite', True)}."
        )
    check_names(path / name, csvs[name], sidecar)
    return read_values(path / name, content=files[name])
