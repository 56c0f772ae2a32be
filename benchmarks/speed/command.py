"""The command line of the benchmark, with the options, screen and exit codes of ``moeprobe``."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.speed import parts as bench_parts
from moeprobe.cli.app import MainGroup
from moeprobe.cli.front.options import AsJson
from moeprobe.runtime.device import check_device

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from benchmarks.speed.run import BenchResult

_SCALES = {"s": ("ms", 1e3)}


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PART]...", help=f"{', '.join(bench_parts.names())} or all; default: all."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Measured rounds per race; default: the part's own number.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads for torch; default: as many as torch uses by itself.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "cpu",
    clock: Annotated[
        str,
        typer.Option(
            help="wall, or cpu: CPU seconds of all threads together, for a machine that others use at the same time."
        ),
    ] = "wall",
    sweep: Annotated[str, typer.Option(help="Sweep whose routers the part models times.")] = "routers-digits",
    layout: Annotated[
        str | None,
        typer.Option(help="Configuration used instead of that sweep's base, e.g. routers/vmoe-b32."),
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Source images per step of the part models; default: as configured.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Tiny sizes and two rounds, to see that it runs; no target is judged."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table.csv and table.json; without it nothing is written.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print all contestants, not only those with a target.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Benchmark moeprobe on this machine against alternatives and theoretical limits.

    Contestants are measured in interleaved rounds, after a check that their values agree; if they do not, that is an
    error (exit code 1). Targets are ratios, never seconds.

    Example: `python -m benchmarks.speed layer startup --out reports/bench/mine`
    """
    check_device(device)
    chosen = bench_parts.chosen(parts or [])
    from benchmarks.speed.parts.base import Settings
    from benchmarks.speed.race import DisagreementError
    from benchmarks.speed.run import bench as run
    from moeprobe.cli.front.screen import Bar

    settings = Settings(
        quick=quick, rounds=rounds, threads=threads, device=device, clock=clock,  # type: ignore[arg-type]
        sweep=sweep, layout=layout, images=images,
    )  # fmt: skip
    try:
        with Bar("rounds") as bar:
            result = run(
                chosen,
                settings=settings,
                out=out,
                overwrite=overwrite,
                command=shlex.join(["python", "-m", "benchmarks.speed", *sys.argv[1:]]),
                watcher=bar,
            )
    except DisagreementError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
    _print(result, out=out, as_json=json, full=full)


def _print(result: "BenchResult", *, out: Path | None, as_json: bool, full: bool) -> None:
    import json

    from benchmarks.speed.facts import CLOCKS, sentence
    from moeprobe.cli.front.screen import console, print_files
    from moeprobe.cli.front.tables import fit
    from moeprobe.results.tables import records

    if as_json:
        content = {
            "table": records(result.table),
            "sidecar": result.sidecar,
            "out": None if out is None else str(out),
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    screen = console()
    for part, rows in result.table.groupby("part", sort=False):
        targets = rows["target"] != ""
        shown = rows[targets] if targets.any() and not full else rows
        for table in fit(_table(str(part), shown), keys=2, width=screen.width):
            screen.print(table)
    about, judged = result.sidecar, result.table[result.table["reached"] != ""]
    said = f"{(judged['reached'] == 'yes').sum()} of {len(judged)} targets reached; " if len(judged) else ""
    screen.print(
        f"{said}{CLOCKS[about['request']['clock']]}, medians of interleaved rounds [quartiles]; ratios within a round; "
        f"{sentence(about['machine'])}; load average {about['load_at_start']} at the start, "
        f"{about['load_at_end']} at the end.",
        style="dim",
        soft_wrap=True,
    )
    if out is None:
        screen.print("Nothing was written; add --out FOLDER to keep all contestants.")
    else:
        print_files(screen, out)


def _table(part: str, rows: "pd.DataFrame") -> "Table":
    from rich.table import Table

    table = Table(title=part, title_justify="left", title_style="bold")
    for name in ("race", "contestant", "median", "against", "ratio", "target"):
        table.add_column(name, justify="right" if name in ("median", "ratio", "target") else "left")
    before = ("", "")
    for row in rows.to_dict("records"):
        race, own = (row["race"], row["contestant"]), _cells(row)
        if race == before:
            own[0] = ""
        table.add_row("" if race[0] == before[0] else race[0], "" if race == before else race[1], *own)
        before = race
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    unit, scale = _SCALES.get(row["unit"], (row["unit"], 1.0))
    low, median, high = (row[name] * scale for name in ("quartile_low", "median", "quartile_high"))
    taken = f"{median:.4g} {unit} [{low:.4g}, {high:.4g}]"
    if row["unit"] == "s":
        taken += f", CPU {row['cpu_seconds'] * scale:.4g}"
    if row["items_per_second"] == row["items_per_second"]:
        taken += f", {row['items_per_second']:,.0f}/s"
    if not row["against"]:
        return [taken, "", "", ""]
    ends = f"[{row['ratio_quartile_low']:.2f}, {row['ratio_quartile_high']:.2f}]"
    reached = {"yes": " reached", "no": " missed", "": ""}[row["reached"]]
    return [
        taken,
        row["against"],
        f"{row['ratio_of']} {row['ratio']:.2f} {ends}",
        f"{row['target']}{reached}",
    ]


command = typer.Typer(
    name="speed", cls=MainGroup, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
command.command("bench")(bench)


@command.callback()
def _group() -> None:
    """Hold the one command in a group, which ends errors and signals as ``moeprobe`` does."""
