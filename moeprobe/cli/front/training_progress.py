"""Progress over several trainings, and within the present one."""

import datetime
import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from moeprobe.cli.front.screen import Screen
from moeprobe.runtime.signals import raise_ignored
from moeprobe.studies.tradeoff import TradeoffProgress

if TYPE_CHECKING:
    from moeprobe.models.training.reporting import Report


class Bars(TradeoffProgress):
    """Two bars on standard error, over the cells and inside of one; a line per evaluation where that is no terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=Screen(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._cells = self._progress.add_task("cells", total=None, values="")
        self._inside = self._progress.add_task("", total=None, values="")
        self._what = ""
        self._cell = ""

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def cell(self, name: str, number: int, total: int) -> None:
        """Begin with a cell."""
        self._cell = name
        self._progress.update(self._cells, completed=number - 1, total=total, values=name)

    def training(self, report: "Report") -> None:
        """Show where the training of the cell is."""
        raise_ignored()
        if report.evaluated:
            if self._progress.disable:
                print(evaluation_line(self._cell, report), file=sys.stderr, flush=True)
            return
        self._inner("training", report.total_steps)
        accuracy = report.values.get("accuracy", float("nan"))
        values = f"loss {report.values['loss']:.3g}  accuracy {accuracy:.3g}  {report.images_per_second:,.0f} images/s"
        self._progress.update(self._inside, completed=report.step, values=values)

    def waiting(self, name: str) -> None:
        """Show that another process has the cell under way."""
        self._inner("waiting for another process", None)

    def start(self, description: str, total: int) -> None:
        """Begin with a probe, or with the tables."""
        raise_ignored()
        self._inner(description.partition(":")[0], total)

    def advance(self, count: int) -> None:
        """Report ``count`` more images or cells."""
        raise_ignored()
        self._progress.advance(self._inside, count)

    def _inner(self, what: str, total: int | None) -> None:
        if what != self._what or total is None:
            self._what = what
            self._progress.reset(self._inside, description=what, total=total, values="")


# The progress of a training run on standard error: a bar on a terminal, elsewhere a line per evaluation.

# Characters of the bar, of the time left, and of the longest name that is not cut.
_BAR, _TIME, _NAME = 20, 7, 24
# Shown first where a window has no room for everything.
_FIRST = ("loss", "accuracy")


class Live:
    """Shows a run: name, step, bar and time left always, and as much of the rest as fits the window.

    Args:
        name: of the run.
        console: where to show it; None = standard error.
    """

    def __init__(self, name: str, *, console: Console | None = None) -> None:
        self._console = console or Screen(stderr=True)
        self._bar = sys.stderr.isatty() if console is None else console.is_terminal
        self._name = name
        self._progress = Progress(
            _column("{task.description}"),
            BarColumn(bar_width=_BAR),
            _column("{task.fields[steps]}"),
            _column("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._bar,
        )
        self._task = self._progress.add_task(_short(name), total=None, steps="starting", values="")

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, report: "Report") -> None:
        """Show where the run is."""
        raise_ignored()
        if not self._bar:
            if report.evaluated:
                # Not rich's own print, which would fold the line at the width of a window that is not there.
                print(evaluation_line(self._name, report), file=self._console.file, flush=True)
            return
        if report.evaluated:
            return
        steps = f"{report.step:,}/{report.total_steps:,}"
        used_width = cell_len(_short(self._name)) + _BAR + len(steps) + _TIME + 4
        self._progress.update(
            self._task,
            completed=report.step,
            total=report.total_steps,
            steps=steps,
            values=_values(report, self._console.width - used_width),
        )

    def show_run(self, name: str) -> "Callable[[Report], None]":
        """Return ``show`` for a run of another name, which begins now."""
        self._name = name
        self._progress.reset(self._task, total=None, description=_short(name), steps="starting", values="")
        return self.show


def evaluation_line(name: str, report: "Report") -> str:
    """Return the line of an evaluation where no bar can be drawn."""
    values = report.values
    parts = [
        f"step {report.step:,}/{report.total_steps:,}",
        f"loss {values['train_loss']:.3g}",
        validation(values),
        f"{report.images_per_second:,.0f} images/s",
    ]
    if report.step < report.total_steps and math.isfinite(report.seconds_left):
        parts.append(f"{datetime.timedelta(seconds=round(report.seconds_left))} left")
    return f"{name}: {', '.join(parts)}"


def validation(values: "Mapping[str, float]", best: str = "") -> str:
    """Return the validation score, with ``best`` after it: accuracy, or a pretraining's loss."""
    name = "accuracy" if "val_accuracy" in values else "loss"
    return f"validation {name} {values[f'val_{name}']:.3f}{best}"


def _column(text: str) -> TextColumn:
    return TextColumn(text, table_column=Column(no_wrap=True))


def _short(name: str) -> str:
    return name if cell_len(name) <= _NAME else set_cell_size(name, _NAME - 1) + "…"


def _values(report: "Report", room: int) -> str:
    """Return as many of a step's values as ``room`` characters hold, the most telling first."""
    texts = {name: f"{name.replace('_', ' ')} {value:.3g}" for name, value in report.values.items()}
    parts = [texts.pop(name) for name in _FIRST if name in texts]
    parts += [f"{report.images_per_second:,.0f} images/s", *texts.values()]
    while parts and len("  ".join(parts)) > room:
        parts.pop()
    return "  ".join(parts)
