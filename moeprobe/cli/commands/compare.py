"""``moeprobe compare``."""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import typer
from rich.table import Table

from moeprobe.cli.front.early import check_comparison
from moeprobe.cli.front.options import Common, CommonOptions, Full, numbers, with_common_options
from moeprobe.cli.front.screen import console
from moeprobe.cli.front.tables import on_screen
from moeprobe.inputs.modality import Modality, modality_of
from moeprobe.probes.registry import USUAL, comparable
from moeprobe.results.layouts import verdicts
from moeprobe.results.layouts.cells import severity_heading
from moeprobe.results.numbers import end

if TYPE_CHECKING:
    from moeprobe.studies.compare import Comparison


# Comparisons that fail a gate; more are counted.
_MOST_FAILURES = 10
# In a narrower window intervals stand below their values, and images and trials in reports alone.
_STACKED = 120


def tables(table: pd.DataFrame, *, extra: str | None = None, full: bool = True) -> list[Table]:
    """Return a table per metric; without ``full``, for the leading metrics alone."""
    narrow = console().width < _STACKED
    return [
        part
        for layout in verdicts.tables(table, extra=extra)
        if full or not layout.folded
        for part in on_screen(
            dataclasses.replace(layout, details=2 if narrow else 0), title=layout.caption, stacked=narrow
        )
    ]


def overview(table: pd.DataFrame, *, extra: str | None = None) -> list[Table]:
    """Return the table that a comparison opens with: a line per metric."""
    layout = verdicts.overview(table, extra=extra)
    narrow = console().width < _STACKED
    return on_screen(layout, title=layout.caption, stacked=narrow) if layout.rows else []


def footing(comparison: "Comparison") -> str:
    """Return what the numbers rest on, a line for each."""
    request, table = comparison.sidecar.request, comparison.table
    probed = request.probe
    low, high = min(table["images"]), max(table["images"])
    images = f"{high:,}" if low == high else f"{low:,}–{high:,}"
    modality = modality_of(table["tokens"])
    units = modality.plural
    parts = [
        f"{images} {units if high != 1 else modality.name} of {probed.data} {probed.split}".rstrip(),
        f"view {probed.view_name}",
        f"seed {probed.seed}",
        f"{len(table):,} differences of {table['metric'].nunique()} metrics in all",
    ]
    parts = ["; ".join(parts)]
    if table["sim_low"].notna().any():
        parts += [
            f"[low, high]: simultaneous 95 % interval over all layers and severities of a metric (max-|t| over "
            f"2,000 bootstrap resamples of {units}, paired)",
            f"p: paired t test over {units}, Holm-corrected",
            f"same: inside ±{request['margin']:g}",
            f"detectable: the minimum difference that these {units} detect at 80 % power",
        ]
    else:
        parts.append(f"no intervals: they need at least 20 {units}")
    alone = [
        name
        for name in comparison.sidecar.checkpoints
        if name not in {*table["checkpoint"], *table["reference"]}
    ]
    if alone:
        parts.append(f"not compared (no partner with the same training seed or layers): {', '.join(alone)}")
    return "\n".join(f"{part}." for part in parts)


def _why(row: pd.Series) -> str:
    if row["verdict"] in ("higher", "lower"):
        return "chance is all but 1, or another one for the reference has another number of experts"
    return str(row["verdict"])


def _place(row: pd.Series, modality: Modality) -> str:
    """Return where a difference was measured: layer, tokens, null, severity."""
    parts = [
        row["layer"],
        verdicts.tokens_of(row["tokens"], modality),
        f"null {row['null']}" if row["null"] else "",
        "" if pd.isna(row["severity"]) else f"{severity_heading([row['metric']])} {row['severity']:g}",
    ]
    return ", ".join(part for part in parts if part)


def failures(comparison: "Comparison", metric: str, allowed: float | None = None) -> str:
    """Return the outcome of --fail-if-worse, or of --fail-unless-no-worse-than with ``allowed``.

    A sentence, and a line for each of the first comparisons that failed.
    """
    rows = comparison.failures
    flags = f"--fail-if-worse {metric}"
    if allowed is not None:
        flags += f" --fail-unless-no-worse-than {allowed:g}"
    if rows.empty:
        what = "it is worse nowhere" if allowed is None else f"it is worse by {allowed:g} nowhere"
        return f"{flags}: passed; {what}."
    total = int((comparison.table["metric"] == metric).sum())
    lines = [f"{flags}: failed in {len(rows)} of {total} comparison{'' if total == 1 else 's'}."]
    for _, row in rows.head(_MOST_FAILURES).iterrows():
        position = _place(row, modality_of(comparison.table["tokens"]))
        what = f"worse by {abs(row['value']):.3f}"
        if allowed is not None and not math.isnan(row["sim_low"]):
            low, high = (end(row[name], signed=True) for name in ("sim_low", "sim_high"))
            what = f"may be worse by {allowed:g} [{low}, {high}]"
        elif row["judgement"] != "worse":
            what = "collapsed" if row["collapsed"] == "checkpoint" else f"cannot be judged ({_why(row)})"
        lines.append(f"  {row['checkpoint']} {what}" + (f" ({position})" if position else ""))
    if len(rows) > _MOST_FAILURES:
        lines.append(f"  … and {len(rows) - _MOST_FAILURES} more; --json lists all.")
    return "\n".join(lines)


FAILED = 3


# None = what the probe usually has.
@with_common_options(CommonOptions(defaults={"group_images": None}))
def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Folders of finished runs, or checkpoints; the first checkpoint is the reference.",
        ),
    ],
    probe: Annotated[
        str | None,
        typer.Option(
            help=f"For checkpoints: one of {', '.join(comparable())}; default {USUAL}. Runs with that command's "
            "defaults."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="For checkpoints: data set; default: the one they were trained on.")
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(help="For checkpoints: the view of match-ratio or sweep; default random_crop."),
    ] = None,
    severities: Annotated[
        str | None, typer.Option(help="For checkpoints: comma-separated severities of a sweep.")
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            help="For shares, κ and gates: intervals that contain 0 and lie inside ± margin count as the same."
        ),
    ] = 0.02,
    fail_if_worse: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Exit with 3 if this metric is worse anywhere, or has collapsed where the reference has not.",
        ),
    ] = None,
    fail_unless_no_worse_than: Annotated[
        float | None,
        typer.Option(
            metavar="MARGIN",
            help="With --fail-if-worse: exit with 3 unless the metric is shown to be worse by less than this "
            "everywhere.",
        ),
    ] = None,
    full: Full = False,
    *,
    common: Common,
) -> None:
    """Is B really better than A? Paired differences, with intervals that hold for all layers and severities at once.

    Opens with a verdict per metric: better, worse, same (identical, or inside the margin), or no significant
    difference, with what these images would detect. Exit code 3 if --fail-if-worse fails.

    Example: `moeprobe compare checkpoints/demo-baseline checkpoints/demo-prc --probe match-ratio --out reports/compare`
    """
    request: dict[str, Any] = {
        "probe": probe,
        "data": data,
        "view": view,
        "severities": numbers(severities, "--severities"),
    }
    check_comparison(sources, request, common.changes)
    # Not by the API, which imports torch: finished runs are compared without.
    from moeprobe.cli.front.screen import Bar
    from moeprobe.cli.front.show import print_plan
    from moeprobe.studies import compare as comparing

    if common.dry_run:
        print_plan(comparing.plan_comparison(sources, **request, **common.changes), as_json=common.json)
        return
    with Bar() as bar:
        comparison = comparing.compare(
            sources,
            **request,
            margin=margin,
            fail_if_worse=fail_if_worse,
            fail_unless_no_worse_than=fail_unless_no_worse_than,
            watcher=bar,
            **common.changes,
        )
    _show(comparison, common, common.options().out, fail_if_worse, full=full)
    if len(comparison.failures):
        raise typer.Exit(FAILED)


def _show(
    comparison: "Comparison", common: Common, out: object, fail_if_worse: str | None, *, full: bool
) -> None:
    from pathlib import Path

    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import console, print_files, print_warnings, records
    from moeprobe.results.layouts.verdicts import sentences

    if common.json:
        content = {
            "comparison": records(comparison.table),
            "verdicts": records(comparison.verdicts),
            "failures": records(comparison.failures),
            "sidecar": comparison.sidecar,
            "out": None if out is None else str(out),
        }
        print_json(content)
        return
    screen, comparison = console(), comparison.with_names()
    for table in overview(comparison.table, extra=fail_if_worse):
        screen.print(table)
    for text in sentences(comparison.verdicts, comparison.table, extra=fail_if_worse):
        screen.print(text, soft_wrap=True)
    for table in tables(comparison.table, extra=fail_if_worse, full=full):
        screen.print(table)
    screen.print(footing(comparison), style="dim")
    print_warnings(screen, comparison.sidecar)
    if fail_if_worse is not None:
        screen.print(
            failures(comparison, fail_if_worse, comparison.sidecar["fail_unless_no_worse_than"]),
            style="bold",
            soft_wrap=True,
        )
    if out is None:
        screen.print("Nothing was written; add --out FOLDER to keep all differences and the forest plot.")
    else:
        print_files(screen, Path(str(out)))
