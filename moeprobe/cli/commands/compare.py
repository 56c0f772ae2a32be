"""``moeprobe compare``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.early import check_comparison
from moeprobe.cli.front.environment import FAILED, print_json
from moeprobe.cli.front.options import Common, CommonOptions, Full, numbers, with_common_options
from moeprobe.declarations.registry import USUAL, comparable

if TYPE_CHECKING:
    from moeprobe.studies.compare import Comparison


# None = what the probe usually has.
@with_common_options(CommonOptions(defaults={"group_images": None}))
def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Folders of finished runs, or checkpoints; the first checkpoint is the reference. A=B compares B with "
            "A; three or more such pairs make a claim about trainings.",
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
    equivalent_within: Annotated[
        float | None,
        typer.Option(
            metavar="MARGIN",
            help="For shares, κ and gates: say if two checkpoints are equivalent within ± this, and how many images "
            "would show it.",
        ),
    ] = None,
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
    looks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="This is one of N comparisons of one new checkpoint with one reference, e.g. in CI: intervals hold in "
            "all of them at once. Needs --history.",
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File that counts the looks; made at the first. A checkpoint that was looked at is the same look.",
        ),
    ] = None,
    full: Full = False,
    *,
    common: Common,
) -> None:
    """Is B really better than A? Paired differences, with intervals that hold for all layers and severities at once.

    Opens with a verdict per metric: better, worse, same (identical, or inside the margin), or no significant
    difference, with the loss that is excluded and what these images would detect. Exit code 3 if --fail-if-worse fails.

    Example: `moeprobe compare checkpoints/demo-baseline checkpoints/demo-prc --probe match-ratio --out reports/compare`
    """
    request: dict[str, Any] = {
        "probe": probe,
        "data": data,
        "view": view,
        "severities": numbers(severities, "--severities"),
    }
    from moeprobe.studies.hand_pairs import read_pairs

    sources, pairs = read_pairs(sources)
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
            equivalent_within=equivalent_within,
            fail_if_worse=fail_if_worse,
            fail_unless_no_worse_than=fail_unless_no_worse_than,
            pairs=pairs,
            looks=looks,
            history=history,
            watcher=bar,
            **common.changes,
        )
    _show(comparison, common, fail_if_worse, full=full)
    if len(comparison.failures):
        raise typer.Exit(FAILED)


def _show(comparison: "Comparison", common: Common, fail_if_worse: str | None, *, full: bool) -> None:
    from moeprobe.cli.front.screen import console, print_files, print_warnings
    from moeprobe.cli.front.tables import (
        comparison_footing,
        comparison_overview,
        comparison_tables,
        gate_outcome,
    )
    from moeprobe.judging.tables import sentences
    from moeprobe.results.tables import records

    out = common.options().out
    if common.json:
        content = {
            "comparison": records(comparison.table),
            "verdicts": records(comparison.verdicts),
            "failures": records(comparison.failures),
            "trainings": records(comparison.trainings),
            "sidecar": comparison.sidecar,
            "out": None if out is None else str(out),
        }
        print_json(content)
        return
    screen, comparison = console(), comparison.with_names()
    for table in comparison_overview(comparison, extra=fail_if_worse):
        screen.print(table)
    for text in sentences(comparison.verdicts, comparison.table, extra=fail_if_worse):
        screen.print(text, soft_wrap=True)
    for table in comparison_tables(comparison.table, extra=fail_if_worse, full=full):
        screen.print(table)
    screen.print(comparison_footing(comparison), style="dim")
    print_warnings(screen, comparison.sidecar)
    if fail_if_worse is not None:
        screen.print(
            gate_outcome(comparison, fail_if_worse, comparison.sidecar["fail_unless_no_worse_than"]),
            style="bold",
            soft_wrap=True,
        )
    if out is None:
        screen.print("Nothing was written; add --out FOLDER to keep all differences and the forest plot.")
    else:
        print_files(screen, out)
