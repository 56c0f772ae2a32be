"""Progress over several trainings, and within the present one."""

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from moeprobe.cli.live import evaluation_line
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
            console=Console(stderr=True),
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
        self._inner(description.partition(":")[0], total)

    def advance(self, count: int) -> None:
        """Report ``count`` more images or cells."""
        self._progress.advance(self._inside, count)

    def _inner(self, what: str, total: int | None) -> None:
        if what != self._what or total is None:
            self._what = what
            self._progress.reset(self._inside, description=what, total=total, values="")
