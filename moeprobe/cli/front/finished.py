"""A folder that holds the run that was asked for: what it found is printed, and nothing is computed."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.cli.front.json_output import print_json
from moeprobe.errors import FinishedError
from moeprobe.runtime.characters import in_one_line
from moeprobe.runtime.files import PATCHES, PIXELS, SHARD, TOKENS, display_path, is_file, read_json

if TYPE_CHECKING:
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
        _say(error.folder)  # now that its files are read: an error is one sentence
        return replace(result, sidecar=result.sidecar | new_names)


def print_finished(folder: Path, *, as_json: bool) -> None:
    """Print what a folder holds whose tables are no values of metrics: its text, if there is one, and its files."""
    from moeprobe.cli.front.screen import console, print_files
    from moeprobe.results.earlier_format import is_earlier
    from moeprobe.results.sidecars import read_sidecar
    from moeprobe.runtime.files import read_bytes

    if as_json:
        sidecar = read_json(folder / SHARD) if is_file(folder / SHARD) else read_sidecar(folder)
        content = _content(folder, sidecar)
        _say(folder)
        print_json(content)
        return
    screen = console()
    text = read_bytes(folder / _TEXT, limit=_LONGEST) if is_file(folder / _TEXT) else None
    first_choices = text is not None and is_earlier(read_sidecar(folder))
    _say(folder)
    if first_choices:
        sys.stderr.write("Where k > 1, load means first choices in these tables; --overwrite repeats them.\n")
    if text is not None:
        screen.print(text.decode("utf-8", errors="replace"), soft_wrap=True)
    print_files(screen, display_path(folder))


def _content(folder: Path, sidecar: dict[str, Any]) -> dict[str, Any]:
    """Return what the run itself printed with ``--json``, from the files of its folder."""
    kind = sidecar["request"]["kind"]
    if is_file(folder / SHARD) or kind not in _CONTENTS:
        return {"sidecar": sidecar, "out": str(display_path(folder))}
    return _CONTENTS[kind](folder, sidecar)


def _overlay(folder: Path, _: dict[str, Any]) -> dict[str, Any]:
    name = PATCHES if is_file(folder / PATCHES) else TOKENS
    return {Path(name).stem: _rows(folder / name), "files": _pictures(folder, name, PIXELS)}


def _pairs(folder: Path, _: dict[str, Any]) -> dict[str, Any]:
    return {"pairs": _rows(folder / "pairs.csv"), "files": _pictures(folder, "pairs.csv")}


def _paper(folder: Path, sidecar: dict[str, Any]) -> dict[str, Any]:
    return {"table": _rows(folder / "seeds.csv"), "load": _rows(folder / "load.csv"), "sidecar": sidecar}


def _traces(folder: Path, sidecar: dict[str, Any]) -> dict[str, Any]:
    from moeprobe.recordings.reading import TraceFile

    files = [folder / name for name in sidecar["files"]]
    traces = [TraceFile(path) for path in files]
    # Sequences of tokens that one of the models cannot read are inputs of the run all the same.
    left_out = traces[0].about["skipped"] if "tokens" in sidecar["request"] else []
    return {
        "files": [str(path) for path in files],
        "images": len(traces[0].ids) + len(left_out),
        "layers": {trace.about["checkpoint"]["name"]: list(trace.layers) for trace in traces},
        "bytes": sum(path.stat().st_size for path in files),
        "sidecar": sidecar,
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    from moeprobe.cli.front.screen import records
    from moeprobe.results.finished import read_rows

    return records(read_rows(path))


def _pictures(folder: Path, *names: str) -> list[str]:
    tables = (folder / name for name in names if is_file(folder / name))
    return [str(path) for path in (*sorted((folder / "figures").iterdir()), *tables)]


# By the kind of a run: those whose result is no table of values.
_CONTENTS: dict[str, Callable[[Path, dict[str, Any]], dict[str, Any]]] = {
    "correspond": _pairs,
    "overlay": _overlay,
    "paper": _paper,
    "trace": _traces,
}


def _say(folder: Path) -> None:
    """Say on standard error, where it does not mix with JSON, that nothing is computed."""
    sys.stderr.write(in_one_line(f"{display_path(folder)} is finished; --overwrite repeats it.") + "\n")
