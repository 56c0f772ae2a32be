"""Mistyped arguments are refused before anything is computed.

Arguments are checked before torch is imported, which takes seconds, and again where they are used; the sentences are
the same.
"""

import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprobe.declarations.registry import comparable_kind
from moeprobe.errors import UserError
from moeprobe.models.checkpoints.location import find_checkpoint
from moeprobe.runtime.catalog import OBJECTIVES, ROUTERS, VIEWS, is_foreign
from moeprobe.runtime.files import is_file, is_folder
from moeprobe.runtime.run_files import REQUEST


def check_arguments(values: Mapping[str, Any], *, split: str) -> None:
    """Check the arguments of a probe by their names.

    Raises:
        UserError: a checkpoint, a data set, a view or a probe does not exist.
    """
    check_checkpoints(values.get("checkpoints") or ())
    if sources := values.get("sources"):
        from moeprobe.studies.hand_pairs import read_pairs

        check_checkpoints(read_pairs(sources)[0], runs=True)
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
    """Raise ``UserError`` unless every path is a file, a folder of parts, or a pattern that some files match."""
    from moeprobe.cli.front.screen import Bar  # it brings what draws
    from moeprobe.recordings.reading import TraceFile
    from moeprobe.recordings.trace_paths import find_parts

    with Bar("MiB") as bar:
        for path in paths:
            if not all(map(is_file, find_parts(path, watcher=bar))):
                TraceFile(path)  # says what is there instead
