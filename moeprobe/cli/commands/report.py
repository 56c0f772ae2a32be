"""``moeprobe report``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.options import names as split_names

if TYPE_CHECKING:
    from rich.table import Table as Screen

    from moeprobe.results.layouts.cells import Table


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
    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import console, records
    from moeprobe.studies.report import report as make
    from moeprobe.studies.report.summary import headline_table

    document = make(runs, names=split_names(names) or None, out=out, overwrite=overwrite)
    if json:
        files = [str(path) for path in document.files]
        content = {"headlines": records(document.headlines), "files": files}
        print_json(content)
        return
    screen = console()
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
