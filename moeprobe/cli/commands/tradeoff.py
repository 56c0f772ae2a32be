"""``moeprobe tradeoff``."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import Svg, command_line
from moeprobe.models.checkpoints.location import CHECKPOINTS
from moeprobe.runtime.device import check_device
from moeprobe.runtime.files import is_folder

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from moeprobe.studies.tradeoff import TradeoffPlan, TradeoffResult


def tradeoff(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP | RUN...] [KEY=VALUE]...",
            help="A sweep of trainings (moeprobe list sweeps, or a YAML file) or folders of finished trainings; "
            "without any, the cells in --out are drawn again. KEY=VALUE overrides a key of the sweep "
            "(measure.limit=100) or of its configurations (epochs=5).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the table and figures; one from an earlier call is continued."),
    ] = None,
    checkpoints: Annotated[
        Path, typer.Option(help="Folder for a sweep's trainings, in a subfolder named after the sweep.")
    ] = CHECKPOINTS,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    times: Annotated[
        Path | None,
        typer.Option(
            help="Output folder of `python -m benchmarks.speed models` on the same sweep: times for the time axis."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Measure again; trainings are kept.")
    ] = False,
    svg: Svg = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the remaining work and its time; write nothing.")
    ] = False,
) -> None:
    """Is a router worth its cost? Accuracy and robustness against training time, FLOPs and parameters.

    Trains the cells of a sweep that are not trained yet, measures each, and draws them together. After Ctrl-C the same
    command continues; several processes may share the work of one sweep.

    Example: `moeprobe tradeoff routers-digits --out reports/routers/digits`
    """
    if out is None:
        raise typer.BadParameter("name a folder, e.g. --out reports/tradeoff", param_hint="--out")
    from moeprobe.cli.front.early import check_trainings

    check_device(device)
    overrides = [text for text in arguments or [] if "=" in text]
    sources = [text for text in arguments or [] if "=" not in text]
    check_trainings(sources, overrides, out=out)
    from moeprobe import api
    from moeprobe.cli.front.training_progress import Bars

    if dry_run:
        plan = api.plan_tradeoff(
            sources, out=out, overrides=overrides, checkpoints=checkpoints, device=device
        )
        _print_plan(plan, as_json=json)
        return
    with Bars() as bars:
        result = api.tradeoff(
            sources,
            out=out,
            overrides=overrides,
            checkpoints=checkpoints,
            device=device,
            times=times,
            overwrite=overwrite,
            svg=svg,
            command=command_line(),
            watcher=bars,
        )
    _print_result(result, as_json=json)


def _print_plan(plan: "TradeoffPlan", *, as_json: bool) -> None:
    from rich.table import Table

    from moeprobe.cli.front.screen import console

    if as_json:
        print_json(dataclasses.asdict(plan))
        return
    table = Table(title="Cells", title_justify="left", title_style="bold")
    table.add_column("cell", no_wrap=True)
    table.add_column("state")
    for name in ("steps left", "about, s"):
        table.add_column(name, justify="right")
    for cell in plan.cells:
        remaining = (f"{cell.steps:,}", f"{cell.seconds:,.0f}") if cell.steps else ("", "")
        table.add_row(cell.name, cell.state, *remaining)
    screen = console()
    screen.print(table)
    screen.print(
        f"{len(plan.cells)} cells, about {plan.seconds / 60:,.1f} minutes of training, one after the other and without "
        "evaluations and measurements, judging by a few steps of each kind. Nothing was written.",
        soft_wrap=True,
    )


def _print_result(result: "TradeoffResult", *, as_json: bool) -> None:
    from collections import Counter

    from moeprobe.cli.front.screen import console
    from moeprobe.cli.front.tables import fit
    from moeprobe.results.packed import CELLS
    from moeprobe.results.tables import records

    if as_json:
        content = {
            "table": records(result.table),
            "trainings": records(result.trainings),
            "states": result.states,
            "sidecar": result.sidecar,
            "out": str(result.out),
        }
        print_json(content)
        return
    screen = console()
    for dataset, rows in result.table.groupby("dataset", sort=False):
        # What holds for other trainings comes before single ones.
        for part in fit(_claims(result.trainings, rows, str(dataset)), keys=2, width=screen.width):
            if part.row_count:
                screen.print(part)
        for part in fit(_table(rows, str(dataset)), keys=1, width=screen.width):
            screen.print(part)
    counts = Counter(result.states.values())
    states = ", ".join(
        f"{counts[state]} {state}" for state in ("trained", "measured", "kept", "diverged") if counts[state]
    )
    timed = sorted({info["device"] for info in result.sidecar.checkpoints.values() if info["device"]})
    screen.print(
        f"{len(result.states)} cells: {states}; [low, high]: 95 % interval over images, of differences over seeds and "
        f"images; first MoE layer; times are of {' and '.join(timed) or 'no training'}.",
        style="dim",
        soft_wrap=True,
    )
    stored = (
        "cells/ (another process was at work on them: the next call packs them into cells.parquet and cells.json"
        if is_folder(result.out / CELLS)
        else "cells.parquet and cells.json (what all of it is made from; no weights"
    )
    over_trainings = "trainings.csv, " if len(result.trainings) else ""
    screen.print(
        f"Written to {result.out}/: table.csv, {over_trainings}paper.csv (the paper's own values), figures/, {stored})",
        soft_wrap=True,
    )


def _claims(claims: "pd.DataFrame", rows: "pd.DataFrame", dataset: str) -> "Table":
    """Return a line per group of trainings: its differences from the first group, over seeds and images."""
    from rich.table import Table

    from moeprobe.results.figures.tradeoff.rows import numbers_of
    from moeprobe.results.numbers import interval

    of_dataset = claims[claims["checkpoint"].isin(rows["group"])]
    cell = ["layer", "view", "severity", "tokens", "metric", "null"]
    columns = {}
    for name, values_of in numbers_of(rows).items():
        cells = values_of[cell].drop_duplicates()
        claimed = of_dataset.merge(cells, on=cell).drop_duplicates("checkpoint").set_index("checkpoint")
        if len(claimed):
            columns[name] = claimed
    first = "" if of_dataset.empty else f" from {of_dataset['reference'].iloc[0]}"
    title = f"{dataset}, over trainings and images: differences{first}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("trainings", no_wrap=True)
    table.add_column("pairs", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    for group, number in of_dataset.groupby("checkpoint", sort=False)["trainings"].first().items():
        values = [
            interval(claimed.loc[group].to_dict() | {"flag": ""}, signed=True, stacked=True)
            if group in claimed.index
            else "–"
            for claimed in columns.values()
        ]
        table.add_row(str(group), f"{number:.0f}", *values)
    return table


def _table(rows: "pd.DataFrame", dataset: str) -> "Table":
    """Return a line per cell: first MoE layer, patches."""
    from rich.table import Table

    from moeprobe.metrics import costs
    from moeprobe.metrics.analyses.output import ACCURACY
    from moeprobe.metrics.registry import find
    from moeprobe.results.figures.tradeoff.rows import TRAINING_TIME, numbers_of, shared_kappa
    from moeprobe.results.numbers import interval

    numbers = numbers_of(rows)
    accuracy = rows[rows["metric"] == ACCURACY.name]
    diverged = set(rows.loc[rows["metric"] == costs.TRAINING_DIVERGED.name, "checkpoint"])
    kappa = shared_kappa(rows)
    title = dataset
    if len(accuracy):
        title += f" {accuracy['split'].iloc[0]}, {accuracy['images'].iloc[0]:,} images"
    if kappa is not None:
        title += f"; κ: {find(kappa).full_label('pooled')}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("cell", no_wrap=True)
    scales = {costs.STEP_SECONDS.name: ("ms per step", 1e3), costs.FLOPS_PER_IMAGE.name: ("MFLOPs", 1e-6)}
    scales |= {costs.ACTIVE_PARAMETERS.name: ("active, M", 1e-6)}
    columns = {
        name: values_of for name, values_of in numbers.items() if name not in scales and name != TRAINING_TIME
    }
    spent_on = {name: rows[rows["metric"] == name].set_index("checkpoint")["value"] for name in scales}
    for name in columns:
        table.add_column(name, justify="right")
    for heading, _ in scales.values():
        table.add_column(heading, justify="right")
    for cell in dict.fromkeys(rows["checkpoint"]):
        without = "diverged" if cell in diverged else "–"
        values = [
            interval(values_of.loc[cell], stacked=True) if cell in values_of.index else without
            for values_of in columns.values()
        ]
        spent = [
            f"{spent_on[name][cell] * scale:,.2f}" if cell in spent_on[name].index else "–"
            for name, (_, scale) in scales.items()
        ]
        table.add_row(cell, *values, *spent)
    return table
