"""``moeprobe curves``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moeprobe.cli.front.options import Svg

if TYPE_CHECKING:
    from moeprobe.studies.curves import Curves


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
    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import console, records
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
    screen.print(_table(result, metric=metric))
    screen.print(
        "Last values: mean over trainings [lowest, highest]; differences: from the first group, at the same seed.",
        style="dim",
        soft_wrap=True,
    )
    if result.files:
        screen.print(f"Written to {out}/: {', '.join(path.name for path in result.files)}", soft_wrap=True)


def _table(curves: "Curves", *, metric: str) -> "object":
    from rich.table import Table

    table = Table(title=metric, title_justify="left", title_style="bold")
    panels = [curves.by] if curves.by else []
    for name in (*panels, "group"):
        table.add_column(name, no_wrap=True)
    for name in ("trainings", "steps", "last value", "difference"):
        table.add_column(name, justify="right")
    for _, row in curves.last().iterrows():
        apart = "" if row["difference"] != row["difference"] else _said(row, "difference", "+.4f")
        cells = [str(row["runs"]), f"{row['step']:,}", _said(row, "value", ".4f"), apart]
        table.add_row(*([str(row["panel"])] if curves.by else []), str(row["group"]), *cells)
    return table


def _said(row: "object", name: str, digits: str) -> str:
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))  # type: ignore[index]
    return f"{value:{digits}}" + (f" [{low:{digits}}, {high:{digits}}]" if low < high else "")
