"""``moeprobe fewshot``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.options import Checkpoints, Common, Data, numbers, probe

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from moeprobe.results.folder import Result

_COLUMNS = ("fewshot_accuracy", "fewshot_accuracy_chance", "fewshot_accuracy_kappa")


@probe
def fewshot(
    checkpoints: Checkpoints,
    data: Data = None,
    shots: Annotated[
        str, typer.Option(help="Training images per class, comma-separated, e.g. 1,5,10,25.")
    ] = "10",
    draws: Annotated[
        int, typer.Option(help="Draws of the training images, the same for all checkpoints.")
    ] = 5,
    *,
    common: Common,
) -> None:
    """How good are the features for few labelled images? Ridge regression on the frozen pre-logits.

    The shots are drawn from the split train, the images of --split are judged. The strength of the penalty is chosen
    on other training images, never on those that are judged.

    Example: `moeprobe fewshot checkpoints/demo-baseline checkpoints/demo-prc --shots 1,5,10 --out reports/fewshot`
    """
    from moeprobe import api
    from moeprobe.cli.run import print_plan
    from moeprobe.cli.screen import Bar, print_result

    options = common.options()
    asked: dict[str, Any] = {"data": data, "shots": numbers(shots, "--shots"), "draws": draws}
    if common.dry_run:
        print_plan(api.plan_fewshot(checkpoints, options=options, **asked), as_json=common.json)
        return
    with Bar() as bar:
        result = api.fewshot(checkpoints, options=options, watcher=bar, **asked)
    print_result(result, out=options.out, as_json=common.json, show=_tables)


def _tables(result: "Result") -> "list[Table]":
    """Return one table: a line per checkpoint and number of shots, the differences last."""
    from rich.table import Table

    from moeprobe.cli.screen import console
    from moeprobe.metrics.fewshot import FEWSHOT_ACCURACY
    from moeprobe.metrics.registry import find

    draws = result.sidecar["request"]["draws"]
    title = f"Few-shot accuracy of frozen features, {draws} draw{'' if draws == 1 else 's'} of the training images"
    caption = (
        "Intervals are about other images to be judged, with the same draws; single draws: lowest to highest."
    )
    table = Table(
        title=title, title_justify="left", title_style="bold", caption=caption, caption_justify="left"
    )
    stacked = console().width < 130
    table.add_column("checkpoint")
    chance, beyond = (find(name).label("pooled").strip() for name in _COLUMNS[1:])
    for name in ("shots", FEWSHOT_ACCURACY.short, chance, beyond, "single draws"):
        table.add_column(name, justify="right", no_wrap=not stacked)
    blocks = [
        (str(checkpoint), rows, False) for checkpoint, rows in result.table.groupby("checkpoint", sort=False)
    ]
    if result.comparison is not None:
        pairs = result.comparison.groupby(["checkpoint", "reference"], sort=False)
        blocks += [(f"{name} − {reference}", rows, True) for (name, reference), rows in pairs]
    for name, rows, signed in blocks:
        table.add_section()
        for number, (shots, here) in enumerate(rows.groupby("severity", sort=False)):
            table.add_row(
                name if number == 0 else "", f"{shots:g}", *_cells(here, signed=signed, stacked=stacked)
            )
    return [table]


def _cells(rows: "pd.DataFrame", *, signed: bool, stacked: bool) -> list[str]:
    """Return the values of all draws together, then the lowest and the highest accuracy of a single one."""
    from moeprobe.results.numbers import interval, number

    together = rows[rows["draw"].isna()].set_index("metric")
    single = rows[rows["draw"].notna() & (rows["metric"] == "fewshot_accuracy")]["value"]
    cells = [interval(together.loc[metric], signed=signed, stacked=stacked) for metric in _COLUMNS]
    ends = [number(value, signed=signed) for value in (single.min(), single.max())]
    return [*cells, " to ".join(dict.fromkeys(ends))]
