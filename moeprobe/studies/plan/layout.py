"""The tables of a plan: images for each metric, and what pairs of trainings and images detect."""

import pandas as pd

from moeprobe.metrics.registry import find
from moeprobe.results.layouts.cells import Table, TableCell
from moeprobe.results.numbers import number, sentence_case
from moeprobe.studies.plan.pilots import location
from moeprobe.studies.plan.run import ImagesPlan


def images_table(plan: ImagesPlan) -> Table:
    """Return a line per metric that is read first, and pair: the comparison that needs most images."""
    rows, units = plan.families.to_dict("records"), plan.units
    several = len(plan.families[["checkpoint", "reference"]].drop_duplicates()) > 1
    lines = []
    for row in rows:
        pair = f"{row['checkpoint']} − {row['reference']}" if row["reference"] else row["checkpoint"]
        lines.append(
            [
                TableCell(sentence_case(find(row["metric"]).full_label(row["null"], units))),
                *([TableCell(pair)] if several else []),
                TableCell(location(row)),
                _count(row["images"]),
                TableCell(_small(row["se"]), key=float(row["se"])),
                TableCell(number(row["effect"], decimals=1), key=float(row["effect"])),
                _count(row["images_needed"]),
            ]
        )
    first = rows[0]
    return Table(
        f"{sentence_case(units.units)} for a difference of {first['difference']:g} at {first['power']:.0%} power",
        [
            "metric",
            *(["compared"] if several else []),
            "needs most",
            "now",
            "error now",
            "design effect",
            "needed",
        ],
        lines,
        "An upper limit stands in for the error, which is an estimate itself; – : no error in the run. "
        "The design effect is of shares.",
        keys=2 if several else 1,
        place=1 if several else 0,
    )


def trainings_table(plan: ImagesPlan) -> Table:
    """Return what pairs of trainings (lines) and images (columns) detect."""
    table, units = plan.trainings, plan.units
    first = table.iloc[0]
    sizes = list(dict.fromkeys(-1.0 if size != size else float(size) for size in table["images"]))
    headings = [
        f"any number of {units.units}" if size < 0 else f"{size:,.0f} {units.units}" for size in sizes
    ]
    lines = [
        [
            TableCell(f"{pairs:,}", key=float(pairs)),
            *(TableCell(number(value), key=float(value)) for value in rows["detectable"]),
        ]
        for pairs, rows in table.groupby("pairs", sort=False)
    ]
    name = find(first["metric"]).full_label(first["null"], units)
    where = f", {location(first)}" if location(first) else ""
    return Table(
        f"Least difference in {name} that is shown at {first['power']:.0%} power{where}",
        ["pairs of trainings", *headings],
        lines,
        f"Over other trainings and other {units.units}, by upper limits of the variances of both. Where more "
        f"{units.units} show no smaller difference, trainings alone limit it.",
        keys=1,
    )


def _count(value: float) -> TableCell:
    return TableCell("–") if pd.isna(value) else TableCell(f"{value:,.0f}", key=float(value))


def _small(value: float) -> str:
    """Return an error with two significant digits."""
    return "–" if value != value else f"{value:.2g}"
