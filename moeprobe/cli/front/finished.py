"""A folder that holds the run that was asked for: what it found is printed, and nothing is computed."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeprobe.cli.front.environment import print_json
from moeprobe.declarations import Kind
from moeprobe.declarations.registry import of_kind
from moeprobe.errors import FinishedError
from moeprobe.runtime.characters import in_one_line
from moeprobe.runtime.files import display_path, is_file, read_bytes, read_json
from moeprobe.runtime.run_files import SHARD

if TYPE_CHECKING:
    from moeprobe.probes.engine.merging import MeasuredShard
    from moeprobe.results.folder import Result

# The text of a run whose tables are its own.
_TEXT, _LONGEST = "tables.md", 2**22


def result_of(compute: Callable[[], "Result"], *, names: Sequence[str] | None = None) -> "Result":
    """Return the result of a run, or, where its folder holds it already, the result as its files have it.

    ``names`` are what its checkpoints are called now: a finished run may have had others, or none.
    """
    try:
        return compute()
    except FinishedError as error:
        from moeprobe.results.finished import read_result
        from moeprobe.results.sidecars import choose_names

        result = read_result(error.folder)
        new_names = choose_names(names, [*result.sidecar["checkpoints"]])
        _say_finished(error.folder)  # now that its files are read: an error is one sentence
        return replace(result, sidecar=result.sidecar | new_names)


def print_finished(folder: Path, *, as_json: bool) -> None:
    """Print what a folder holds whose tables are no values of metrics: its text, if there is one, and its files."""
    from moeprobe.cli.front.screen import console, print_files
    from moeprobe.results.sidecars import read_sidecar

    if as_json:
        sidecar = read_json(folder / SHARD) if is_file(folder / SHARD) else read_sidecar(folder)
        kind = Kind if is_file(folder / SHARD) else of_kind(sidecar["request"]["kind"]) or Kind
        content = kind.finished_content(folder, sidecar)
        _say_finished(folder)
        print_json(content)
        return
    screen = console()
    text = read_bytes(folder / _TEXT, limit=_LONGEST) if is_file(folder / _TEXT) else None
    _say_finished(folder)
    if text is not None:
        screen.print(text.decode("utf-8", errors="replace"), soft_wrap=True)
    print_files(screen, display_path(folder))


def print_shard(measured: "MeasuredShard", *, unit: str, as_json: bool) -> None:
    """Print how many inputs a shard holds, and where it is; ``unit`` is what they are called."""
    from moeprobe.cli.front.screen import console

    sidecar = measured.sidecar
    if as_json:
        print_json({"sidecar": sidecar, "out": str(measured.path)})
        return
    console().print(
        f"Shard {measured.shard}: {sidecar['images']:,} of {sidecar['images_of_run']:,} {unit} measured, in "
        f"{measured.path}. When all are done: moeprobe merge FOLDER... --out FOLDER.",
        soft_wrap=True,
    )


def _say_finished(folder: Path) -> None:
    """Say on standard error, where it does not mix with JSON, that nothing is computed."""
    sys.stderr.write(in_one_line(f"{display_path(folder)} is finished; --overwrite repeats it.") + "\n")
