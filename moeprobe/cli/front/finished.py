"""A folder that holds the run that was asked for: what it found is printed, and nothing is computed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from moeprobe.cli.front.json_output import print_json
from moeprobe.errors import FinishedError
from moeprobe.runtime.characters import in_one_line
from moeprobe.runtime.filenames import SHARD
from moeprobe.runtime.files import is_file, read_json, shown

if TYPE_CHECKING:
    from moeprobe.results.folder import Result

# The text of a run whose tables are its own.
_TEXT, _LONGEST = "tables.md", 2**22


def result_of(compute: Callable[[], "Result"]) -> "Result":
    """Return the result of a run, or, where its folder holds it already, the result as its files have it."""
    try:
        return compute()
    except FinishedError as error:
        from moeprobe.results.finished import read_result

        _say(error.folder)
        return read_result(error.folder)


def print_finished(folder: Path, *, as_json: bool) -> None:
    """Print what a folder holds whose tables are no values of metrics: its text, if there is one, and its files."""
    from moeprobe.cli.front.screen import console, print_files
    from moeprobe.results.earlier_format import is_earlier
    from moeprobe.results.sidecars import read_sidecar
    from moeprobe.runtime.files import read_bytes

    _say(folder)
    if as_json:
        sidecar = read_json(folder / SHARD) if is_file(folder / SHARD) else read_sidecar(folder)
        print_json({"sidecar": sidecar, "out": str(shown(folder))})
        return
    screen = console()
    if is_file(folder / _TEXT):
        if is_earlier(read_sidecar(folder)):
            sys.stderr.write(
                "Where k > 1, load means first choices in these tables; --overwrite repeats them.\n"
            )
        text = read_bytes(folder / _TEXT, limit=_LONGEST).decode("utf-8", errors="replace")
        screen.print(text, soft_wrap=True)
    print_files(screen, shown(folder))


def _say(folder: Path) -> None:
    """Say on standard error, where it does not mix with JSON, that nothing is computed."""
    sys.stderr.write(in_one_line(f"{shown(folder)} is finished; --overwrite repeats it.") + "\n")
