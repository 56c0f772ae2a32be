"""What needs no computing: mistyped arguments are refused, and the run that a folder holds already is printed.

Arguments are checked before torch is imported, which takes seconds, and again where they are used; the sentences are
the same.
"""

import mimetypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.cli.front.environment import print_json
from moeprobe.declarations.registry import comparable_kind
from moeprobe.errors import FinishedError, UserError
from moeprobe.models.checkpoints.location import find_checkpoint
from moeprobe.results.files_for_reports import PATCHES, PIXELS, TOKENS
from moeprobe.runtime.catalog import OBJECTIVES, ROUTERS, VIEWS, is_foreign
from moeprobe.runtime.characters import in_one_line
from moeprobe.runtime.files import display_path, is_file, is_folder, read_json
from moeprobe.runtime.run_files import REQUEST, SHARD

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


def check_arguments(values: Mapping[str, Any], *, split: str) -> None:
    """Check the arguments of a probe by their names.

    Raises:
        UserError: a checkpoint, a data set, a view or a probe does not exist.
    """
    check_checkpoints(values.get("checkpoints") or ())
    check_checkpoints(values.get("sources") or (), runs=True)
    if values.get("probe") is not None:
        comparable_kind(values["probe"])
    check_view(values.get("view"))
    check_data(values.get("data"), split=split)


def check_checkpoints(sources: Sequence[str], *, runs: bool = False) -> None:
    """Raise ``UserError`` unless every path holds a checkpoint, or with ``runs`` a finished run."""
    for source in sources:
        if (mimetypes.guess_type(source)[0] or "").startswith("image/"):
            raise UserError(f"{source} is an image, not a checkpoint; give it as: --file {source}.")
    for source in sources:
        if not is_foreign(source):
            _check_checkpoint(source, runs=runs)


def _check_checkpoint(source: str, *, runs: bool) -> None:
    path: str | Path = source
    if "," in source:  # settings follow; reading them brings pydantic
        from moeprobe.models.checkpoints.header import split_settings

        path, _ = split_settings(source)
    try:
        find_checkpoint(path)
    except UserError:
        if not runs:
            raise
        from moeprobe.results.finished import is_run  # not before it is asked for: it brings pandas

        if not is_run(Path(source)):
            raise


def check_comparison(sources: Sequence[str], asked: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where checkpoints cannot be compared as asked; of finished runs nothing is checked.

    Args:
        sources: checkpoints, or folders of runs.
        asked: probe, data, view and severities; None = the usual.
        changes: common options by name.
    """
    from moeprobe.declarations.options import Options
    from moeprobe.declarations.registry import to_compare
    from moeprobe.probes.engine.checks import preflight

    try:
        check_checkpoints(sources)
    except UserError:
        return
    if not any(is_file(Path(source) / REQUEST) for source in sources):
        probe = to_compare(asked["probe"], view=asked["view"], severities=asked["severities"])
        preflight(probe, sources, data=asked["data"], options=Options(**{**probe.defaults, **changes}))


def check_data(data: str | None, *, split: str) -> None:
    """Raise ``UserError`` where a data set, its location or its split is mistyped."""
    if data is not None:
        from moeprobe.inputs.data.readers import naming

        naming.check_data(data, split=split)


def check_view(view: str | None) -> None:
    """Raise ``UserError`` unless there is such a view."""
    from moeprobe.inputs.view_names import parse_view

    name = parse_view(view or "").name
    if name not in ("", "clean"):
        VIEWS.check(name)


def check_configuration(config: Any) -> None:
    """Raise ``UserError`` where a training names a plug-in or data that do not exist."""
    ROUTERS.check(config.model.router_name)
    OBJECTIVES.check(config.objective.name)
    check_view(config.view.name)
    check_data(config.data.name, split="train")
    from moeprobe.inputs.open import open_training_view

    open_training_view(config.view.name, **config.view.parameters)


def check_trainings(sources: Sequence[str], overrides: Sequence[str], *, out: Path) -> None:
    """Raise ``UserError`` where a sweep, a key of one or the folder of a training is mistyped."""
    from moeprobe.models import grid
    from moeprobe.results.packed import CELLS

    for source in sources:
        if grid.is_sweep(source):
            grid.load(source, overrides)
        elif not is_folder(Path(source)) and not _is_cell(out / CELLS / Path(source).name):
            raise grid.no_training(Path(source))


def _is_cell(folder: Path) -> bool:
    """Whether a cell of a trade-off was measured, be it packed or not."""
    from moeprobe.results.packed import find_cell

    return is_folder(folder) or find_cell(folder) is not None


def check_folder(out: Path | None, *, overwrite: bool) -> None:
    """Raise ``UserError`` where no run can begin in a folder, whatever it is about."""
    if out is not None:
        from moeprobe.results.folder import check_takes_a_run

        check_takes_a_run(out, overwrite=overwrite)


def check_traces(paths: Sequence[Path]) -> None:
    """Raise ``UserError`` unless every path is a file."""
    from moeprobe.recordings.reading import TraceFile

    for path in paths:
        if not is_file(path):
            TraceFile(path)  # says what is there instead


# A folder that holds the run that was asked for: what it found is printed.

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
    from moeprobe.runtime.files import read_bytes

    if as_json:
        sidecar = read_json(folder / SHARD) if is_file(folder / SHARD) else read_sidecar(folder)
        content = _content(folder, sidecar)
        _say_finished(folder)
        print_json(content)
        return
    screen = console()
    text = read_bytes(folder / _TEXT, limit=_LONGEST) if is_file(folder / _TEXT) else None
    _say_finished(folder)
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


def _say_finished(folder: Path) -> None:
    """Say on standard error, where it does not mix with JSON, that nothing is computed."""
    sys.stderr.write(in_one_line(f"{display_path(folder)} is finished; --overwrite repeats it.") + "\n")
