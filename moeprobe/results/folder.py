"""A run's output folder: opened under the rules of resuming, filled, and marked as finished.

A folder holds ``run.json`` (the request) from the start, part files while it is computed, and at the end
``table.csv``, ``comparison.csv``, ``images.parquet``, ``figures/`` and, last of all, the sidecar ``table.json``,
whose presence says that the run is finished.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd
import pyarrow as pa

from moeprobe.declarations.registry import of_kind
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.models.checkpoints.location import LAST
from moeprobe.results import showing
from moeprobe.results.caveats import sentences_of as caveats_of
from moeprobe.results.layouts.side_by_side import summary
from moeprobe.results.sidecars import Sidecar, with_names
from moeprobe.results.stored import SumsStore, of_file, write
from moeprobe.runtime import files
from moeprobe.runtime.catalog import plugins_in
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.folders import RunFolder, check_family, check_replaceable, in_use_first
from moeprobe.runtime.object_stores import check_local
from moeprobe.runtime.records import LOCK, NEW_RECORD, Contents, Family, scan
from moeprobe.runtime.run_files import FINISHED, IMAGES, PARTS, REQUEST, SHARD, SHARDS, UNITS

# Files that any run may have beside those that its kind declares.
_OF_EVERY_RUN = (
    REQUEST, FINISHED, SHARD, IMAGES, UNITS, "table.csv", "comparison.csv",
    "figures/*.png", "figures/*.svg", "figures/*.gif",
    "parts/*.parquet", "parts/*/*.parquet", "parts/*/*.json", f"{SHARDS}/*/",
)  # fmt: skip


def _patterns_in(path: Path) -> tuple[str, ...]:
    request = read_request(path)  # others too may call a file run.json
    if request is None:
        return ()
    kind = of_kind(request["kind"])
    return _OF_EVERY_RUN if kind is None else (*_OF_EVERY_RUN, *kind.writes)


# Also a run inside a run: that of a comparison, those of a trade-off's cells.
RUN = Family("probe", patterns=_patterns_in)


def read_request(path: Path) -> Any:
    """Return what an earlier run was asked; None where there was none.

    Raises:
        UserError: its file cannot be read, so that nobody knows.
    """
    if not files.is_there(path / REQUEST):
        return None
    try:
        request = files.read_json(path / REQUEST)
    except UserError as error:
        if isinstance(error.__cause__, OSError):  # the disk, and not what the file holds
            raise
        return None
    return request if isinstance(request, dict) and isinstance(request.get("kind"), str) else None


@dataclass(frozen=True)
class Result:
    """What an aggregate run found.

    Attributes:
        table: one value per row; the columns are described in ``columns.COLUMNS``.
        comparison: paired differences from the first checkpoint; None where there are none.
        sums: the sums per image, as they are stored.
        sidecar: configuration and provenance.
        drawing: makes the figures of such a result.
        leading: makes the sentences that it begins with.
    """

    table: pd.DataFrame
    comparison: pd.DataFrame | None
    sums: SumsStore
    sidecar: Sidecar
    drawing: Callable[["Result"], Mapping[str, Any]] = lambda _: {}
    leading: Callable[["Result"], Sequence[str]] = lambda _: ()

    def __post_init__(self) -> None:
        # A plug-in may hand over a plain dict.
        if not isinstance(self.sidecar, Sidecar):
            object.__setattr__(self, "sidecar", Sidecar(self.sidecar))

    @property
    def images(self) -> pa.Table:
        """The sums per image as one table, all in memory."""
        return self.sums.table()

    def summary(self) -> pd.DataFrame:
        """Return the leading metrics, a line per layer and metric; a notebook shows it for the result."""
        renamed = with_names(self)
        return showing.as_frame(summary(renamed.table, renamed.comparison))

    def without_single_experts(self) -> Self:
        """Return the result without the numbers about single experts, which are too many to be read."""
        tables = [
            None if table is None else table[table["expert"].isna()]
            for table in (self.table, self.comparison)
        ]
        return dataclasses.replace(self, table=tables[0], comparison=tables[1])

    def plot(self) -> showing.Figures:
        """Return the figures of this result by name; nothing is written."""
        return showing.Figures(self.drawing(with_names(self)))

    def __repr__(self) -> str:
        kind = self.sidecar.request.get("kind", "")
        checkpoints = "+".join(dict.fromkeys(self.table["checkpoint"]))
        return showing.one_line("Result", {"kind": kind, "checkpoints": checkpoints, "rows": len(self.table)})

    def _repr_html_(self) -> str:
        from moeprobe.results.layouts.page import fragment

        request = self.sidecar.request
        rests = showing.heading(request, self.table)
        caption = f"{request.get('kind', '')}: {rests}; all rows in .table, figures by .plot()"
        renamed = with_names(self)
        sentences = [*self.leading(renamed), *caveats_of(renamed.sidecar)]
        return fragment(caption, [summary(renamed.table, renamed.comparison)], sentences=sentences)


R = TypeVar("R", bound=Result)


class OutputFolder:
    """The folder of one run, which no other process writes to until it is closed.

    Args:
        path: the folder; where that is does not change with the working directory.
        request: the run's specification, as JSON; a folder with another request stays unchanged.
        overwrite: replace what an earlier run left there.
        shared: continue a run of this kind, finished or not, whatever its request; other processes may do
            so too.

    Raises:
        FinishedError: it holds this run, finished, and ``overwrite`` is off; what a kill in its last moment left
            undone is done.
        UserError: the folder holds a different run and ``overwrite`` is off, or something that moeprobe did not
            write, it is in use, or it cannot be written to.
    """

    def __init__(
        self, path: Path, request: dict[str, Any], *, overwrite: bool = False, shared: bool = False
    ) -> None:
        self.path = path = files.absolute(path)
        request = json.loads(json.dumps(request))
        # Named only where there are any, so that other runs are still of the same question.
        self._plugins = plugins_in(request)
        request |= {"plugins": self._plugins} if self._plugins else {}
        # Before anything is made, and once more when nobody else can change it.
        _check_outside(path, request, overwrite=overwrite, shared=shared)
        self._own = RunFolder(path, RUN, shared=shared)
        try:
            self._begun_here = overwrite or not files.is_there(path / REQUEST)
            check_folder(path, request, overwrite=overwrite, shared=shared)
            if overwrite:
                self._own.clear()
            elif shared:
                files.remove(path / FINISHED)
            files.write_json(path / REQUEST, request)
        except BaseException:
            self._own.close()
            raise

    @property
    def parts(self) -> Path:
        """Where part files are kept."""
        return self.path / PARTS

    def write(self, result: R) -> R:
        """Write the tables and the sums per image; returns the result with the sums as they are in their file."""
        write_csv(self.path / "table.csv", result.table)
        if result.comparison is not None:
            write_csv(self.path / "comparison.csv", result.comparison)
        write(self.path / IMAGES, result.sums)
        return dataclasses.replace(result, sums=of_file(self.path / IMAGES))

    def finish(self, sidecar: Mapping[str, Any]) -> None:
        """Write the sidecar, which marks the run as finished, and remove the part files.

        Raises:
            UserError: something that was written is not there any more.
        """
        self._own.check(ignored=PARTS)
        files.write_json(self.path / FINISHED, self._with_plugins(sidecar))
        with contextlib.suppress(UserError, OSError):  # the run is finished; who finds it next completes it
            self._own.remove(PARTS)
            self._own.remove_runs(SHARDS)

    def finish_shard(self, description: Mapping[str, Any]) -> None:
        """Write what the shard of a run is, which marks it as finished; the part files are what it has.

        Raises:
            UserError: something that was written is not there any more.
        """
        self._own.check()
        files.write_json(self.path / SHARD, self._with_plugins(description))

    def _with_plugins(self, description: Mapping[str, Any]) -> dict[str, Any]:
        with_plugins = (
            {"request": {**description["request"], "plugins": self._plugins}} if self._plugins else {}
        )
        return {**description, **with_plugins}

    def expect(self, runs: Iterable[str]) -> None:
        """Note folders inside that other processes write for this run."""
        for name in runs:
            self._own.expect(name)

    def exclusive(self) -> contextlib.AbstractContextManager[bool]:
        """Keep others out who share the folder; enters as whether that worked."""
        return self._own.exclusive()

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files, and runs inside (ending in ``/``), while the folder is ``exclusive``."""
        self._own.discard(paths)

    def close(self, *, failed: bool = False) -> None:
        """Give the folder back; of a run that failed before it had anything, its question goes too."""
        # What cannot be looked at or removed stays; the folder is given back whatever happens.
        with contextlib.suppress(UserError, OSError):
            if failed and self._begun_here and scan(self.path, RUN).own == (REQUEST,):
                files.remove(self.path / REQUEST)
        self._own.close()

    def __enter__(self) -> "OutputFolder":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)


@contextlib.contextmanager
def output_folder(
    path: Path | None, request: dict[str, Any], *, overwrite: bool, svg: bool = False
) -> Iterator[OutputFolder | None]:
    """Yield a run's folder, closed when the block ends; None where no folder was named.

    Raises:
        UserError: what ``OutputFolder`` raises; or a finished run lacks the figures that are asked for by ``svg``.
    """
    if path is None:
        yield None
    else:
        with figures_as_asked(svg=svg):
            folder = OutputFolder(path, request, overwrite=overwrite)
        with folder:
            yield folder


@contextlib.contextmanager
def figures_as_asked(*, svg: bool) -> Iterator[None]:
    """Raise ``UserError`` in place of ``FinishedError`` where SVG figures are wanted and the run has none."""
    try:
        yield
    except FinishedError as error:
        if svg and any(error.folder.rglob("*.png")) and not any(error.folder.rglob("*.svg")):
            raise UserError(
                f"{files.display_path(error.folder)} is finished without SVG figures; add "
                f"{option('overwrite', True)} to draw them."
            ) from None
        raise


def _complete(path: Path) -> None:
    """Remove the temporary files of a run that was killed after it was marked as finished."""
    # A finished shard is its parts.
    if files.is_there(path / FINISHED) and any(
        files.is_there(path / name) for name in (PARTS, SHARDS, LOCK, NEW_RECORD)
    ):
        # Where another process is at it, or nothing can be written, that is not why this run is refused.
        with contextlib.suppress(UserError, OSError), RunFolder(path, RUN) as run_folder:
            run_folder.remove(PARTS)
            run_folder.remove_runs(SHARDS)


def check_takes_a_run(path: Path, *, overwrite: bool) -> None:
    """Raise the ``UserError`` that ``OutputFolder`` raises of a folder whatever is asked.

    A run with another request is detected only once the request is known.
    """
    check_local(path)
    path = files.absolute(path)
    with contextlib.suppress(FinishedError):
        _check_outside(path, read_request(path) or {"kind": ""}, overwrite=overwrite, shared=False)


def _check_outside(path: Path, request: dict[str, Any], *, overwrite: bool, shared: bool) -> None:
    """Raise what ``check_folder`` does of a folder that is not held, of a finished run when it is complete."""
    try:
        with in_use_first(path, shared=shared):
            check_folder(path, request, overwrite=overwrite, shared=shared)
    except FinishedError:
        _complete(path)
        raise


def check_folder(path: Path, request: dict[str, Any], *, overwrite: bool, shared: bool) -> None:
    """Raise ``UserError`` unless a run may begin, or continue, in a folder."""
    contents = scan(path, RUN)
    if contents.empty:
        return
    check_family(path, contents, RUN)
    earlier = read_request(path)
    if earlier is None and not contents.own:
        what = (
            "holds a checkpoint and no probe"
            if files.is_there(path / LAST)
            else "is not empty and not a folder of moeprobe"
        )
        raise UserError(f"{files.display_path(path)} {what}; choose another {option('out')}.")
    if overwrite:
        check_replaceable(path, contents, RUN)
    elif not (shared and earlier is not None and earlier["kind"] == request["kind"]):
        _check_same(path, contents, earlier, request)


def _check_same(path: Path, contents: Contents, earlier: Any, request: dict[str, Any]) -> None:
    # A run that stopped before its first result leaves its question, which need not be kept.
    begun = set(contents.own) - {REQUEST}
    advice = f"add {option('overwrite', True)} to replace it, or choose another {option('out')}."
    finished = not begun.isdisjoint((FINISHED, SHARD))
    if finished and earlier == request:
        raise FinishedError(
            f"{files.display_path(path)} is finished; add {option('overwrite', True)} to repeat it.", path
        )
    if finished:
        raise UserError(f"{files.display_path(path)} holds a finished run of something else; {advice}")
    if begun and earlier != request:
        raise UserError(f"{files.display_path(path)} holds an unfinished run of something else; {advice}")
