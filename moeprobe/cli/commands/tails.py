"""``moeprobe tails``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.environment import print_json
from moeprobe.inputs.modality import ORDINARY
from moeprobe.runtime import distributed

if TYPE_CHECKING:
    from rich.table import Table as Screen

    from moeprobe.studies.tails import Tails


def tails(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of finished runs that compare two routings."),
    ],
    above: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Also the share of inputs of which more than this share of tokens change."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="What was sampled, as for compare: folder, or a CSV with the columns image_id and unit."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """How much does routing change for the inputs that change most?

    Quantiles (50, 90, 99 %) over inputs of the share of tokens that change experts, from the sums of finished runs.
    Intervals are those of ordered values; where inputs are too few for one, there is none.

    Example: `moeprobe tails reports/my-noise --above 0.5`
    """
    distributed.check_alone("tails")
    from moeprobe.cli.front.screen import console
    from moeprobe.results.tables import records
    from moeprobe.studies.tails import tails as compute

    result = compute(runs, above=above, unit=unit)
    if json:
        print_json({"table": records(result.table), "sentences": result.sentences()})
        return
    screen = console()
    screen.print(_table(result))
    for sentence in result.sentences():
        screen.print(sentence, soft_wrap=True)
    screen.print(
        f"Quantiles over {result.modality.units} of the share of {result.modality.tokens} that change experts; "
        "[low, high]: 95 % intervals of ordered values.",
        style="dim",
        soft_wrap=True,
    )


def _table(result: "Tails") -> "Screen":
    from rich.table import Table

    table = Table(title="Tails of the share of changed tokens", title_justify="left", title_style="bold")
    ordinary = result.table[result.table["tokens"].isin(ORDINARY)]
    values = ordinary if len(ordinary) else result.table
    keys = ["checkpoint", "layer", "view", "severity", "tokens"]
    identifying = [
        name for name in keys if values[name].nunique(dropna=False) > 1 or name in ("checkpoint", "layer")
    ]
    for name in identifying:
        table.add_column(name, no_wrap=True)
    columns = list(dict.fromkeys(zip(values["metric"], values["at"], strict=True)))
    for metric, at in columns:
        table.add_column(f"{at:.0%} quantile" if metric == "quantile" else f"above {at:g}", justify="right")
    table.add_column(result.modality.units, justify="right")
    for key, rows in values.groupby(keys, sort=False, dropna=False):
        of_row = dict(zip(keys, key, strict=True))
        by_column = {(row["metric"], row["at"]): row for row in rows.to_dict("records")}
        names = [
            ""
            if of_row[name] != of_row[name]
            else f"{of_row[name]:g}"
            if name == "severity"
            else str(of_row[name])
            for name in identifying
        ]
        numbers = [_with_interval(by_column[column]) for column in columns]
        table.add_row(*names, *numbers, f"{rows['inputs'].iloc[0]:,}")
    return table


def _with_interval(row: dict[Any, Any]) -> str:
    ends = "" if row["ci_low"] != row["ci_low"] else f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    return f"{row['value']:.3f}{ends}"
