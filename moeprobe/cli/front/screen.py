"""What is printed: tables a person can read, or JSON, and a progress bar on long work."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from moeprobe.cli.front.environment import print_json
from moeprobe.errors import UserError
from moeprobe.inputs.modality import Modality, sources
from moeprobe.results.sidecars import with_names
from moeprobe.runtime import progress
from moeprobe.runtime.characters import harmless
from moeprobe.runtime.files import is_file
from moeprobe.runtime.records import RECORD
from moeprobe.runtime.run_files import REQUEST
from moeprobe.runtime.signals import raise_ignored

if TYPE_CHECKING:
    import pandas as pd

    from moeprobe.declarations import Kind
    from moeprobe.results.folder import Result
    from moeprobe.results.sidecars import Request, Sidecar

PIPE_WIDTH = 160
# More files than this are not listed one by one.
_MOST_FILES = 20


class Screen(Console):
    """A console whose terminal no printed name steers, and that takes a closed pipe (``| head``) for enough."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text; escaped before its width is measured."""
        return super().render_str(harmless(text), **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the pieces of whatever is printed; only rich's own, such as a bar's cursor, may steer."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Stop in silence."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def console() -> Console:
    """Return the console of the results; wide where nobody's window limits it."""
    return Screen(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)


class Bar(progress.Progress):
    """A progress bar on standard error, silent when that is not a terminal; ``unit`` is what it counts."""

    def __init__(self, unit: str = "images") -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=Screen(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, description: str, total: int) -> None:
        """Begin a piece of work of ``total`` units."""
        raise_ignored()
        self._task = self._progress.add_task(description, total=total)

    def advance(self, count: int) -> None:
        """Report ``count`` more."""
        raise_ignored()
        self._progress.advance(self._task, count)


def print_result(
    result: "Result",
    *,
    out: Path | None,
    as_json: bool,
    show: Callable[["Result"], Sequence[Table | str]],
    other_files: Sequence[Path] = (),
) -> None:
    """Print the tables of a result and its files, or everything as JSON; ``other_files`` are not in the folder."""
    if as_json:
        from moeprobe.results.tables import records  # it brings pandas

        comparison = result.comparison
        print_json(
            {
                "table": records(result.table),
                "comparison": None if comparison is None else records(comparison),
                "sidecar": result.sidecar,
                "out": None if out is None else str(out),
            }
        )
        return
    screen, result = console(), with_names(result)
    for part in show(result):
        screen.print(part, soft_wrap=isinstance(part, str))
    screen.print(footing(result), style="dim", soft_wrap=True)
    print_warnings(screen, result.sidecar)
    for path in other_files:
        screen.print(f"Written: {path}", soft_wrap=True)
    if out is None:
        subject = "Nothing else" if other_files else "Nothing"
        screen.print(f"{subject} was written; add --out FOLDER to keep tables and figures.")
    else:
        print_files(screen, out)


def print_warnings(screen: Console, sidecar: "Sidecar") -> None:
    """Print the notes about the checkpoints and their numbers, and the warnings."""
    from moeprobe.results.caveats import sentences_of

    for sentence in sentences_of(sidecar):
        screen.print(sentence, soft_wrap=True)
    for name, info in sidecar.checkpoints.items():
        if "warning" in info:
            screen.print(f"Warning: {name} {info['warning']}", style="bold yellow", soft_wrap=True)


def print_files(screen: Console, out: Path) -> None:
    """Name every file of an output folder; of many, those on its top level, and count the others."""
    try:
        files = [
            path.relative_to(out)
            for path in sorted(out.rglob("*"))
            if is_file(path) and path.name not in (REQUEST, RECORD)
        ]
    except (UserError, OSError):  # all of it is written; only the names are not known
        files = []
    names = [str(file) for file in files]
    if len(files) > _MOST_FILES:
        inside = Counter(file.parts[0] for file in files if len(file.parts) > 1)
        names = [str(file) for file in files if len(file.parts) == 1]
        names += [f"{folder}/ ({count} file{'s' if count > 1 else ''})" for folder, count in inside.items()]
    screen.print(f"Written to {out}/: {', '.join(names)}", soft_wrap=True)


def footing(result: "Result") -> str:
    """Return the notes on what the numbers rest on."""
    from moeprobe.declarations import registry
    from moeprobe.inputs.open import mirroring_omitted
    from moeprobe.probes.engine.origins import same_as_training  # not before a probe has run: it brings torch
    from moeprobe.results.layouts.along_severity import random_routers
    from moeprobe.results.tables import modality_of_table

    request, table = result.sidecar.request, result.table
    kind = registry.of_kind(request.kind)
    sampled = None if kind is None else kind.sampled
    # Several data sets have inputs of their own each.
    images = int(table.groupby("dataset", dropna=False)["images"].max().sum())
    modality = modality_of_table(table, data=request.data, inputs=sampled)
    parts = [
        sources(images, modality, data=request.data, split=request.split),
        *_intervals(kind, table, modality),
        f"seed {request.seed}",
    ]
    if same_as_training(result.sidecar):
        parts.append(f"checkpoints trained on {request.data}")
    if result.comparison is not None and len(result.comparison):
        parts.append(
            "differences are paired, their intervals hold for all layers and severities of a number at once"
        )
    parts += _over_trainings(table, modality)
    parts += _skipped_images(result.sidecar.skipped_images)
    parts += _nothing_of(request, table)
    parts += _layers_apart(table)
    parts += random_routers(table)
    parts += [f"not measured: {note}" for note in result.sidecar.notes]
    parts += [f"{what} were ignored" for what in result.sidecar.ignored]
    if request.trained_capacity:
        for name, checkpoint in request.checkpoints.items():
            group = f", {checkpoint['group_images']} image(s) per group"
            limit = (
                "evaluates without a limit"
                if checkpoint["capacity"] == "none"
                else checkpoint["capacity"] + group
            )
            parts.append(f"capacity of {name}: {limit}")
    if not request.labels_used and "output" in request.analyses:
        parts.append("no accuracy: the data have no labels, or other classes than the model")
    if mirroring_omitted(request.view):
        parts.append("no mirroring: these images have a handedness")
    return "; ".join(parts) + "."


def _intervals(kind: "type[Kind] | None", table: "pd.DataFrame", modality: Modality) -> list[str]:
    """Return what intervals are over, or why there are none; empty where the table says what its ranges hold."""
    from moeprobe.declarations import Layout
    from moeprobe.results.numbers import no_intervals

    if kind is not None and kind.layout is Layout.COVERAGE:
        return []
    if table["ci_low"].notna().any():
        return [f"[low, high]: 95 % interval over {modality.units}"]
    return [no_intervals(modality.units)]


def _over_trainings(table: "pd.DataFrame", modality: Modality) -> list[str]:
    """Return a note where numbers of a set of trainings stand beside numbers of single pairs."""
    from moeprobe.metrics.alignment import TRAININGS

    if not (table["interval"] == TRAININGS).any():
        return []
    return [f"of sets of trainings over {modality.plural} and trainings"]


def _skipped_images(names: "list[str]") -> list[str]:
    if not names:
        return []
    first = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return [f"{len(names)} unreadable image{'s' if len(names) > 1 else ''} skipped: {first}"]


def _nothing_of(request: "Request", table: "pd.DataFrame") -> list[str]:
    """Return a sentence where a checkpoint has no row."""
    without = [name for name in request.checkpoints if name not in set(table["checkpoint"])]
    return [f"nothing that was measured applies to the routers of {', '.join(without)}"] if without else []


def _layers_apart(table: "pd.DataFrame") -> list[str]:
    """Return a sentence where checkpoints differ in their MoE layers, so that differences are missing."""
    routing = table[table["layer"] != ""]
    layers = {
        name: list(dict.fromkeys(rows["layer"])) for name, rows in routing.groupby("checkpoint", sort=False)
    }
    if len({tuple(names) for names in layers.values()}) < 2:
        return []
    common = set.intersection(*map(set, layers.values()))
    per_model = "; ".join(f"{name} has {', '.join(names)}" for name, names in layers.items())
    which = (
        "differences only in the MoE layers they share"
        if common
        else "no MoE layer in common in which this is measured, so no differences"
    )
    return [f"{which} ({per_model})"]
