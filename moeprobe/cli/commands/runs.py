"""``moeprobe curves``, ``report`` and ``merge``: commands on finished trainings and runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from moeprobe.cli.front.early import check_folder
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.finished import result_of
from moeprobe.cli.front.options import AsJson, Download, Full, Overwrite, Svg, command_line
from moeprobe.cli.front.options import names as split_names
from moeprobe.declarations.options import Options
from moeprobe.runtime import distributed

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as Screen

    from moeprobe.results.layouts.cells import Table


def curves(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders of trainings, finished or not; a trade-off's output folder stands for all its cells.",
        ),
    ],
    metric: Annotated[
        str, typer.Option(help="A column of metrics.csv: val_accuracy, val_loss, train_main_loss, ...")
    ] = "val_accuracy",
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="A key of the configuration, e.g. model.top_k: a panel for each value."
        ),
    ] = None,
    x: Annotated[Literal["step", "epoch"], typer.Option(help="Quantity on the horizontal axis.")] = "step",
    out: Annotated[
        Path | None, typer.Option(help="Folder for curves.csv and curves.png; default: print only.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier call left in --out.")
    ] = False,
    svg: Svg = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Learning curves of several trainings in one figure and one CSV.

    One color per group, a thin line per training seed, their mean in bold. Prints the last values, and how far each
    group is from the first one at the same seed.

    Example: `moeprobe curves reports/routers/digits --by model.top_k --out reports/curves`
    """
    distributed.check_alone("curves")
    from moeprobe.cli.front.screen import console
    from moeprobe.results.tables import records
    from moeprobe.studies.curves import curves as make

    result = make(runs, metric=metric, by=by, x=x, out=out, overwrite=overwrite, svg=svg)
    last = result.last()
    if json:
        content = {
            "last": records(last),
            "table": records(result.table),
            "files": [str(path) for path in result.files],
        }
        print_json(content)
        return
    screen = console()
    screen.print(_table(last, title=metric, by=result.by))
    screen.print(
        "Last values: mean over trainings [lowest, highest]; differences: from the first group, at the same seed.",
        style="dim",
        soft_wrap=True,
    )
    if result.files:
        screen.print(f"Written to {out}/: {', '.join(path.name for path in result.files)}", soft_wrap=True)


def _table(last: "pd.DataFrame", *, title: str, by: str) -> "Screen":
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for name in (*([by] if by else []), "group"):
        table.add_column(name, no_wrap=True)
    for name in ("trainings", "steps", "last value", "difference"):
        table.add_column(name, justify="right")
    for _, row in last.iterrows():
        apart = "" if row["difference"] != row["difference"] else _with_interval(row, "difference", "+.4f")
        cells = [str(row["runs"]), f"{row['step']:,}", _with_interval(row, "value", ".4f"), apart]
        table.add_row(*([str(row["panel"])] if by else []), str(row["group"]), *cells)
    return table


def _with_interval(row: "pd.Series", name: str, digits: str) -> str:
    value, low, high = row[[name, f"{name}_low", f"{name}_high"]]
    return f"{value:{digits}}" + (f" [{low:{digits}}, {high:{digits}}]" if low < high else "")


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Output folders of finished runs, in the order of the report."),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, report.md and report-files/; not inside a run.")
    ] = Path("reports/report"),
    names: Annotated[
        str | None,
        typer.Option(help="What the page calls the checkpoints, comma-separated, in the order of the runs."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing report; other files stay.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Put finished runs on one page to share: a self-contained report.html, and report.md.

    The page holds a summary, each run's table and figures, its CSVs, and the provenance.

    Example: `moeprobe report reports/demo/match-ratio reports/demo/eval --out reports/my-report`
    """
    distributed.check_alone("report")
    from moeprobe.cli.front.screen import console
    from moeprobe.results.tables import records
    from moeprobe.studies.report import report as make
    from moeprobe.studies.report.summary import headline_table

    document = make(runs, names=split_names(names) or None, out=out, overwrite=overwrite)
    if json:
        files = [str(path) for path in document.files]
        content = {
            "conclusions": document.conclusions,
            "headlines": records(document.headlines),
            "files": files,
        }
        print_json(content)
        return
    screen = console()
    for sentence in document.conclusions:
        screen.print(sentence, soft_wrap=True)
    headlines = headline_table(document.runs)
    if headlines is not None:
        screen.print(*_screen(headlines, screen.width))
        screen.print(headlines.note, style="dim", soft_wrap=True)
    size = document.files[0].stat().st_size / 1e6
    screen.print(
        f"Written to {out}/: report.html ({size:.1f} MB, to be sent as it is), report.md (goes with report-files/).",
        soft_wrap=True,
    )


def _screen(table: "Table", width: int) -> "list[Screen]":
    from rich.table import Table as Screen

    from moeprobe.cli.front.tables import fit

    screen = Screen(title=table.caption, title_justify="left", title_style="bold")
    for number, column in enumerate(table.columns):
        screen.add_column(column, justify="right" if table.numeric_columns[number] else "left")
    for row in table.rows:
        screen.add_row(*(f"{cell.text} {cell.between}".rstrip() for cell in row))
    return fit(screen, keys=2, width=width)


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="SHARD...", help="Folders written with --shard, in any order."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")],
    overwrite: Overwrite = False,
    device: Annotated[
        str, typer.Option(help="Device for the few images that are drawn: auto, cpu, cuda or mps.")
    ] = "auto",
    svg: Svg = False,
    download: Download = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Run the Python code that the shards name for their models (py:MODULE:FACTORY)."
        ),
    ] = False,
    full: Full = False,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether the shards are complete; write nothing.")
    ] = False,
) -> None:
    """Merge the shards of a run that was measured in parts with --shard: tables, intervals, figures.

    The folder is the one that a single process would have written, byte for byte (except for times in table.json); the
    shards are left unchanged. Shards that are missing, given twice or from another run are refused.

    Example: `moeprobe merge reports/sweep-1-of-2 reports/sweep-2-of-2 --out reports/sweep`
    """
    distributed.check_alone("merge")
    from moeprobe.cli.front.screen import Bar
    from moeprobe.cli.front.show import show
    from moeprobe.probes.engine import merging

    shards = merging.read_shards(runs)
    if dry_run:
        summary = {"shards": len(shards.paths), "images": shards.images, "probe": shards.probe.name}
        text = f"{len(shards.paths)} shards of {shards.probe.name} with {shards.images:,} images: complete."
        if as_json:
            print_json(summary)
        else:
            print(f"{text} Nothing was written.")
        return
    merging.check_destination(shards, out)
    check_folder(out, overwrite=overwrite)
    options = Options(out=out, overwrite=overwrite, device=device, svg=svg, command=command_line())

    def compute() -> Any:
        with Bar() as bar:
            return merging.merge(shards, options, trust=trust, watcher=bar)

    show(shards.probe, result_of(compute), out=out, as_json=as_json, full=full)
