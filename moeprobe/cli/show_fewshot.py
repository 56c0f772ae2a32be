"""Few-shot accuracy on the screen: a line per checkpoint and number of shots."""

from typing import TYPE_CHECKING

from rich.table import Table

from moeprobe.cli.screen import console
from moeprobe.metrics.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.registry import find
from moeprobe.results.numbers import interval, number

if TYPE_CHECKING:
    import pandas as pd

    from moeprobe.results.folder import Result

_COLUMNS = ("fewshot_accuracy", "fewshot_accuracy_chance", "fewshot_accuracy_kappa")


def few_shots(result: "Result") -> list[Table]:
    """Return one table: a line per checkpoint and number of shots, the differences last."""
    draws = result.sidecar["request"]["draws"]
    title = f"Few-shot accuracy of frozen features, {draws} draw{'' if draws == 1 else 's'} of the training images"
    caption = "Intervals are over the evaluated images, with the same draws; single draws: lowest to highest."
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
        for line, (shots, here) in enumerate(rows.groupby("severity", sort=False)):
            table.add_row(
                name if line == 0 else "", f"{shots:g}", *_cells(here, signed=signed, stacked=stacked)
            )
    return [table]


def _cells(rows: "pd.DataFrame", *, signed: bool, stacked: bool) -> list[str]:
    """Return the values of all draws together, then the lowest and the highest accuracy of a single one."""
    together = rows[rows["draw"].isna()].set_index("metric")
    single = rows[rows["draw"].notna() & (rows["metric"] == "fewshot_accuracy")]["value"]
    cells = [interval(together.loc[metric], signed=signed, stacked=stacked) for metric in _COLUMNS]
    ends = [number(value, signed=signed) for value in (single.min(), single.max())]
    return [*cells, " to ".join(dict.fromkeys(ends))]
