"""Run one probe of the library with a progress bar, and print what it found."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from moeprobe import api
from moeprobe.cli.options import Common
from moeprobe.cli.screen import Bar, console, print_result
from moeprobe.results.folder import Result


def run(
    kind: str,
    checkpoints: Sequence[str],
    common: Common,
    *,
    show: Callable[[Result], Sequence[Table | str]],
    timed: bool = False,
    **arguments: Any,
) -> None:
    """Run a probe of this kind and print the result; with --dry-run, only what it would take."""
    options = common.options()
    if common.dry_run:
        print_plan(api.plan(kind, list(checkpoints), options=options, **arguments), as_json=common.json)
        return
    with Bar() as bar:
        try:
            result = api.probe(kind, list(checkpoints), options=options, watcher=bar, **arguments)
        except KeyboardInterrupt as error:
            if options.out is not None:
                error.add_note(
                    f"What was measured is kept in {options.out}; the same command goes on from there."
                )
            raise
    print_result(result, out=options.out, as_json=common.json, show=show)
    if timed and not common.json:
        for name, rate in result.sidecar["images_per_second"].items():
            console().print(f"{name}: {rate:,.0f} images/s on {result.sidecar['device']}", style="dim")


def print_plan(plan: api.Plan, *, as_json: bool, least: bool = False, before: str = "the statistics") -> None:
    """Print what a run would take ``before`` what comes last; ``least``: more passes than are known beforehand."""
    if as_json:
        print(json.dumps(dataclasses.asdict(plan)))
        return
    more = " at least" if least else ""
    total = plan.checkpoints * plan.images * plan.passes
    console().print(
        f"{plan.checkpoints} checkpoint{'s' if plan.checkpoints != 1 else ''} x {plan.images:,} images "
        f"x {plan.passes} forward passes = {total:,} passes{more}, about {plan.seconds:,.1f} s before {before}, "
        f"judging by {plan.timed_images} images. Nothing was written."
    )
