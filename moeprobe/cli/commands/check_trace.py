"""``moeprobe trace check``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from moeprobe.recordings.faults import Finding

# What a check that failed returns.
FAILED = 3


def check_trace(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE.parquet", help="File of moeprobe trace record or trace import.")
    ],
    against: Annotated[
        Path | None,
        typer.Option(
            help="Another trace of the same model and inputs: are layers, positions or experts shifted?"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Look for known capture faults in recorded routing; the exit code is 3 if there is one.

    Finds all-zero, unset and 255-filled captures, prompt rows of zeros, dense layers filled with zeros, missing rows,
    duplicate experts, experts out of range, identical layers, and generated tokens that all carry the same experts;
    with --against also shifted layers or positions and renumbered experts.

    Example: `moeprobe trace check traces/served.parquet --against traces/again.parquet`
    """
    from dataclasses import asdict

    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import Bar, console
    from moeprobe.recordings.check_trace import check_trace

    with Bar("rows") as bar:
        checked = check_trace(trace, against=against, watcher=bar)
    if json:
        content = asdict(checked) | {"path": str(checked.path), "sound": checked.sound}
        content["file"] = content.pop("path")
        print_json(content)
    else:
        screen = console()
        layers = checked.layers
        screen.print(
            f"{checked.inputs:,} inputs, {len(layers)} layers ({layers[0]} to {layers[-1]}).", soft_wrap=True
        )
        for line in said(checked.findings):
            screen.print(line, soft_wrap=True)
        if checked.overlap is not None and checked.sound:
            overlap = checked.overlap
            screen.print(
                f"Overlap of the choices in {overlap.inputs} of {overlap.common} common inputs: {overlap.here:.3f} "
                f"(chance {overlap.chance:.3f}); no shift of layers or positions makes it clearly larger.",
                soft_wrap=True,
            )
        if checked.load_only:
            screen.print(
                "It holds counts of choices and no tokens: they were checked when they were imported.",
                soft_wrap=True,
            )
        elif not checked.findings:
            screen.print("No fault of capture is known that looks like this.", soft_wrap=True)
    if not checked.sound:
        raise typer.Exit(FAILED)


def said(findings: "Sequence[Finding]") -> list[str]:
    """Return the findings as lines."""
    return [
        f"{'Fault' if finding.fault else 'Note'}, {finding.name}: {finding.sentence}" for finding in findings
    ]
