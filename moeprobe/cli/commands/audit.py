"""``moeprobe audit``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.early import check_checkpoints, check_folder, check_traces
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import Common, CommonOptions, Data, Match, with_common_options
from moeprobe.cli.front.options import names as split_names
from moeprobe.recordings.trace_paths import is_trace_path
from moeprobe.runtime.arguments import check_positive

if TYPE_CHECKING:
    from rich.table import Table

    from moeprobe.studies.audit import AuditPlan, AuditResult
    from moeprobe.studies.audit.sentences import PropertyLine

_OUT = "Folder for the page, tables and figures; default: print only."


@with_common_options(CommonOptions(helps={"out": _OUT}))
def audit(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [MODEL]",
            help="A checkpoint, or two to compare, the first being the reference; or one or two .parquet files of "
            "recorded routing.",
        ),
    ],
    data: Data = None,
    minutes: Annotated[
        float, typer.Option(help="How long it may take: decides the number of images and the probes.")
    ] = 5.0,
    probes: Annotated[
        str | None, typer.Option(help="Probes to run, comma-separated; default: all that join an audit.")
    ] = None,
    match: Match = "names",
    *,
    common: Common,
) -> None:
    """Can the routing of this model be trusted, and is model B better than model A?

    Runs crops, noise, corruptions, load, confidence, quantization, repetition, accuracy, routes, margins, flips,
    experts and regret; with two models, also agree and align. Each gets a verdict by all MoE layers. With --out it
    writes one page, audit.html. After Ctrl-C the same command continues.

    Example: `moeprobe audit checkpoints/demo-baseline checkpoints/demo-prc --minutes 2 --out reports/audit`
    """
    check_positive("minutes", minutes)
    are_recordings = all(map(is_trace_path, models))
    if are_recordings:
        check_traces([Path(model) for model in models])
    else:
        check_checkpoints([model for model in models if not is_trace_path(model)])
    options = common.options()
    if not common.dry_run:
        check_folder(options.out, overwrite=options.overwrite)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar

    settings: dict[str, Any] = {
        "data": data,
        "minutes": minutes,
        "probes": split_names(probes) or None,
        "options": options,
    }
    if common.dry_run:
        _print_plan(api.plan_audit(models, **settings), as_json=common.json)
        return
    with Bar() as bar:
        result = api.audit(models, **settings, match=match, watcher=bar)
    print_audit(result, as_json=common.json)


def _print_plan(plan: "AuditPlan", *, as_json: bool) -> None:
    from moeprobe.cli.front.screen import console

    if as_json:
        steps = [step.facts for step in plan.steps]
        print_json({"steps": steps, "left_out": dict(plan.left_out), "seconds": plan.seconds})
        return
    screen = console()
    for step in plan.steps:
        screen.print(
            f"{step.name}: {step.images:,} images x {step.passes} forward passes, about {step.seconds:,.0f} s",
            soft_wrap=True,
        )
    for name, why in plan.left_out.items():
        screen.print(f"Left out, {name}: {why}", soft_wrap=True)
    screen.print(
        f"About {plan.seconds:,.0f} s of {60 * plan.minutes:,.0f} s, judging by a few images. Nothing was written."
    )


def print_audit(result: "AuditResult", *, as_json: bool) -> None:
    """Print the verdicts, a line per property, and where the page is; or everything as JSON."""
    from moeprobe.cli.front.screen import console, print_warnings
    from moeprobe.results.tables import records
    from moeprobe.runtime.files import display_path
    from moeprobe.studies.audit.result import HTML, next_steps, scope
    from moeprobe.studies.audit.sentences import lines_of, short_references, summary

    if as_json:
        content = {
            "verdicts": records(result.verdicts),
            "left_out": dict(result.left_out),
            "sidecar": result.sidecar,
            "out": None if result.folder is None else str(display_path(result.folder)),
        }
        print_json(content)
        return
    renamed = result.with_names()
    screen, lines = console(), lines_of(renamed.verdicts)
    from moeprobe.cli.front.tables import fit

    for part in fit(_table(renamed.models, lines), keys=1, width=screen.width):
        screen.print(part)
    if len(result.models) > 1:
        for line in lines:
            if references := short_references(line):
                screen.print(
                    f"{line.title}, κ of known routers in the first layer: {references}",
                    style="dim",
                    soft_wrap=True,
                )
    screen.print(summary(lines, renamed.models), style="bold", soft_wrap=True)
    for step in next_steps(lines)[:2]:
        screen.print(step, soft_wrap=True)
    for why in dict.fromkeys(result.left_out.values()):
        names = ", ".join(name for name, reason in result.left_out.items() if reason == why)
        screen.print(f"Left out, {names}: {why}", style="dim", soft_wrap=True)
    screen.print(scope(result), style="dim", soft_wrap=True)
    print_warnings(screen, result.sidecar)
    if result.folder is None:
        screen.print("Nothing was written; add --out FOLDER to keep the page, tables and figures.")
    else:
        screen.print(f"The page: {display_path(result.folder)}/{HTML}", soft_wrap=True)


def _table(models: list[str], lines: "list[PropertyLine]") -> "Table":
    from rich.table import Table

    from moeprobe.studies.audit.sentences import (
        difference_text,
        location,
        short_references,
        value_text,
        verdict_text,
    )

    several = len(models) > 1
    table = Table(title=f"Audit of {' and '.join(models)}", title_justify="left", title_style="bold")
    table.add_column("")
    for name in models:
        table.add_column(name if several else "verdict")
    has_references = any(short_references(line) for line in lines)
    for name in (
        ["second minus first"]
        if several
        else ["value [95 %]", "where", *["κ of known routers, first layer"] * has_references]
    ):
        table.add_column(name)
    for line in lines:
        by_model = {
            row["checkpoint"]: verdict_text(row) if several else str(row["verdict"]) for row in line.values
        }
        cells = [by_model.get(name, "") for name in models]
        if several:
            difference = line.difference
            size = "" if difference is None else difference_text(difference)
            cells.append(": ".join(part for part in (line.judgement, size) if part))
        else:
            row = line.values[0]
            cells += [value_text(row), location(row), *[short_references(line)] * has_references]
        table.add_row(line.title, *cells)
    return table
