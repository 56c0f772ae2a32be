"""Train and measure the missing cells, and put all cells into one table and its figures."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.adapters.open import load_model
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.view_names import parse_view
from moeprobe.judging.trainings import TRAININGS
from moeprobe.models.training.reporting import Report
from moeprobe.models.training.start import DivergedError
from moeprobe.results.folder import OutputFolder
from moeprobe.results.sidecars import Sidecar, make_sidecar, provenance
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.catalog import ROUTERS, VIEWS
from moeprobe.runtime.files import check_can_write, is_file, write_csv, write_json, write_text
from moeprobe.runtime.locks import InUseError, Lock
from moeprobe.runtime.progress import Progress
from moeprobe.studies.tradeoff.claims import claims
from moeprobe.studies.tradeoff.packing import pack
from moeprobe.studies.tradeoff.table import (
    facts_of,
    facts_of_diverged,
    make_table,
    published_values,
    read_times,
    with_times,
)
from moeprobe.studies.tradeoff.trainings import ABOUT, Training, find_cells
from moeprobe.studies.train import check_run_folder, complete, train, train_pipeline
from moeprobe.studies.training_files import CURVE, SUMMARY, read_summary


class TradeoffProgress(Progress):
    """Receives the progress of a trade-off, over the cells and inside of them; this one ignores it."""

    def cell(self, name: str, number: int, total: int) -> None:
        """Begin with a cell, the ``number``-th (from 1) of ``total``."""

    def training(self, report: Report) -> None:
        """Report where the training of the cell is."""

    def waiting(self, name: str) -> None:
        """Wait for another process that has the cell under way."""


@dataclass(frozen=True)
class TradeoffResult:
    """What was found.

    Attributes:
        table: one number per row, with ``columns.COLUMNS`` and ``TRADEOFF_COLUMNS``.
        trainings: mean differences of groups of three or more seeds from the first group, over seeds and images.
        states: cell -> trained, measured, kept, or diverged in training, by this call.
        sidecar: request and provenance.
        out: its output folder.
    """

    table: pd.DataFrame
    trainings: pd.DataFrame
    states: dict[str, str]
    sidecar: Sidecar
    out: Path


@check_arguments
def tradeoff(
    given: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    overrides: Sequence[str] = (),
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
    times: str | Path | None = None,
    overwrite: bool = False,
    svg: bool = False,
    command: str = "",
    watcher: TradeoffProgress | None = None,
) -> TradeoffResult:
    """Compare trainings: accuracy and robustness against what they cost.

    What is finished is never computed again: a cell's training is skipped where its run folder is finished, its probes
    where theirs are, and without anything left to do the table and the figures are made from ``out`` alone. Several
    processes may be given the same sweep; each cell is trained by one of them.

    Args:
        given: sweeps (by name or as YAML files), or folders of finished trainings; none = the cells in ``out``.
        out: output folder; one of an earlier trade-off is continued.
        overrides: ``key=value`` of the sweep or of its configurations; of folders only ``measure.…``.
        checkpoints: where the sweep's trainings go, in a folder of the sweep's name.
        device: where to train and to measure.
        times: output folder of ``benchmarks.speed models`` on the same sweep, whose steps, timed in turn,
            replace the trainings' own on the axis of time.
        overwrite: measure again what an earlier trade-off measured; trainings are kept.
        svg: write the figures as SVG too.
        command: the command line, for the sidecar.
        watcher: receives the progress.

    Raises:
        UserError: something named does not exist or does not fit, or was trained or measured otherwise before.
    """
    watcher, started = watcher or TradeoffProgress(), time.perf_counter()
    out = Path(out)
    cells = find_cells(several(given), out=out, checkpoints=Path(checkpoints), overrides=overrides)
    # Read before training: a wrong folder of times would be found after hours.
    if times is not None:
        read_times(Path(times), [cell.config.group for cell in cells])
    for cell in cells:
        # Measuring again needs the weights.
        if overwrite and not cell.of_sweep and not cell.is_trained():
            raise UserError(
                f"The weights of {cell.name} are gone from {cell.checkpoint}; leave {option('overwrite')} out."
            )
        # Looked up only to fail early.
        ROUTERS.get(cell.config.model.router_name)
        for view in cell.measure.views:
            parsed = parse_view(view)
            VIEWS.get(parsed.name)
            if parsed.parameters:
                raise UserError(
                    f"measure.views takes views without parameters, e.g. {parsed.name}; got {view!r}."
                )
        # What does not fit is found before hours of training.
        if (overwrite or not cell.is_done()) and not cell.is_trained():
            check_run_folder(cell.checkpoint, cell.config, overwrite=False)
            check_can_write(cell.checkpoint)
    request = _request(cells)
    with OutputFolder(out, request, overwrite=overwrite, shared=True) as folder:
        work = _Work(device, command, watcher)
        states: dict[str, str] = {}
        busy = list(enumerate(cells, 1))
        # Twice: first without waiting, so that free cells are done while another process trains; then waiting for the
        # rest.
        for wait in (False, True):
            busy_cells = []
            for number, cell in busy:
                watcher.cell(cell.name, number, len(cells))
                state = work.finish(cell, number, wait=wait)
                if state is None:
                    busy_cells.append((number, cell))
                else:
                    states[cell.name] = state
            busy = busy_cells
        # Finished cells go into one file, or a sweep would leave thousands of small ones.
        pack(folder, cells)
        watcher.start("table", len(cells))
        table = make_table(cells, run=out.name, progress=watcher.advance)
        table = table if times is None else with_times(table, Path(times))
        write_csv(folder.path / "table.csv", table)
        write_csv(folder.path / "paper.csv", published_values())
        over_trainings = claims(cells)
        if len(over_trainings):
            write_csv(folder.path / TRAININGS, over_trainings)
        else:
            # That of an earlier call, which had more seeds.
            (folder.path / TRAININGS).unlink(missing_ok=True)
        draw_figures(table, folder.path / "figures", svg=svg)
        sidecar = make_sidecar(
            request,
            command=command,
            checkpoints={cell.name: _provenance(cell) for cell in cells},
            states=states,
            wall_seconds=time.perf_counter() - started,
        )
        folder.finish(sidecar)
    return TradeoffResult(table, over_trainings, states, sidecar, out)


def _request(cells: Sequence[Training]) -> dict[str, Any]:
    """Return everything that the numbers depend on."""
    measures = [cell.measure.model_dump() for cell in cells]
    return {
        "kind": "tradeoff",
        "data": ", ".join(dict.fromkeys(cell.data for cell in cells)),
        "measure": [measure for number, measure in enumerate(measures) if measure not in measures[:number]],
        "cells": [cell.name for cell in cells],
    }


def _provenance(cell: Training) -> dict[str, Any]:
    info = cell.info()
    assert info is not None
    return {
        "path": info["checkpoint"],
        "sha256": info["sha256"],
        "device": info["training"].get("device"),
        "training": {key: info["config"][key] for key in ("group", "seed", "objective", "data")},
    }


def draw_figures(table: pd.DataFrame, folder: Path, *, svg: bool) -> None:
    """Write the figures of a table, beside the published values."""
    from moeprobe.results.figures import save_all
    from moeprobe.results.figures.tradeoff import draw, draw_published

    save_all(draw(table) | {"paper": draw_published(published_values())}, folder, svg=svg)


@dataclass(frozen=True)
class _Work:
    """What all cells share."""

    device: str
    command: str
    watcher: TradeoffProgress

    def finish(self, cell: Training, number: int, *, wait: bool) -> str | None:
        """Do the remaining work of a cell and return its kind; None: another process has it and ``wait`` is off."""
        # Checked without the lock, since a finished cell never changes.
        if cell.is_done():
            return "kept"
        if not cell.of_sweep:
            return self._finish(cell, number)
        if wait:
            self.watcher.waiting(cell.name)
        try:
            # The lock lies beside the cell, whose folder may not exist yet.
            cell.training_folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"Cannot write {cell.training_folder.parent}: {error.strerror or error}."
            ) from error
        try:
            lock = Lock(cell.training_folder.with_name(f".{cell.name}.lock"), wait=wait)
        except InUseError:
            return None
        with lock:
            # Again under the lock: another process may have finished it while this one waited.
            return "kept" if cell.is_done() else self._finish(cell, number)

    def _finish(self, cell: Training, number: int) -> str:
        state = "measured"
        if not cell.is_trained():
            self._check_begun(cell)
            try:
                self._train(cell)
            except DivergedError as error:
                # A diverged training is a result as well.
                self._write(cell, number, facts_of_diverged(cell), {"diverged": error.step})
                return "diverged"
            state = "trained"
        elif cell.of_sweep:
            complete(cell.checkpoint, cell.config)
        self._describe(cell, number)
        if missing := cell.missing():
            model = load_model(cell.checkpoint, device=self.device)
            options = Options(
                split=cell.measure.split,
                limit=cell.measure.limit,
                seed=cell.measure.seed,
                group_images=cell.measure.group_images,
                device=self.device,
                figures=False,  # of one checkpoint each, and as large as all the rest
                command=self.command,
            )
            for question in missing:
                out = cell.folder / question.folder
                question.ask(
                    model, data=cell.data, options=dataclasses.replace(options, out=out), watcher=self.watcher
                )
        return state

    def _train(self, cell: Training) -> None:
        if cell.pipeline is None:
            train(cell.config, folder=cell.checkpoint, device=self.device, report=self.watcher.training)
            return
        train_pipeline(
            cell.pipeline,
            folder=cell.pipeline.folder,
            device=self.device,
            begin=lambda _: self.watcher.training,
        )

    def _check_begun(self, cell: Training) -> None:
        """Raise ``UserError`` where measurements of lost weights would be mixed with measurements of new ones."""
        if cell.info() is not None:
            lacking = ", ".join(question.folder for question in cell.missing())
            raise UserError(
                f"{cell.folder} lacks {lacking}, and the weights it was measured with are gone from {cell.checkpoint}; "
                f"choose another {option('out')}, or add {option('overwrite', True)} to measure all cells again."
            )

    def _describe(self, cell: Training, number: int) -> None:
        """Write the facts about the trained cell, once; raises ``UserError`` where the weights have changed since."""
        inspected = inspect_checkpoint(cell.checkpoint)
        info = cell.info()
        if info is not None:
            # The folder may have been trained again since.
            if info["sha256"] != inspected["sha256"]:
                raise UserError(
                    f"{cell.folder} was measured on other weights than those in {cell.checkpoint}; choose another "
                    f"{option('out')}, or add {option('overwrite', True)} to measure all cells again."
                )
            # More may be measured now than before, of the same weights.
            if info["measure"] != cell.measure.model_dump():
                write_json(cell.folder / ABOUT, info | {"measure": cell.measure.model_dump()})
            return
        summary = cell.checkpoint / SUMMARY
        self._write(cell, number, facts_of(inspected), read_summary(summary) if is_file(summary) else {})

    def _write(self, cell: Training, number: int, facts: dict[str, Any], training: dict[str, Any]) -> None:
        """Write the facts about a cell and the curve of its training."""
        curve = cell.checkpoint / CURVE
        # Copied, since the table must be made without the checkpoints.
        if is_file(curve):
            write_text(cell.folder / CURVE, curve.read_text(encoding="utf-8"))
        info = {
            "checkpoint": str(cell.checkpoint),
            **facts,
            "training": training,
            "place": number,
            "measure": cell.measure.model_dump(),
            "config": cell.config.model_dump(),
        }
        write_json(cell.folder / ABOUT, info | provenance())
