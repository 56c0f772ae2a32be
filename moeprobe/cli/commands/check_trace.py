"""``moeprobe trace check``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.environment import FAILED, print_json
from moeprobe.cli.front.options import Match

if TYPE_CHECKING:
    from moeprobe.recordings.check_trace import Overlap

_Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE.parquet",
        help="File of moeprobe trace record or trace import, or a folder of its parts.",
    ),
]


def check_trace(
    trace: _Trace,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Another trace of the same model and inputs: are layers, positions or experts shifted?"
        ),
    ] = None,
    match: Match = "names",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Look for known capture faults in recorded routing; the exit code is 3 if there is one.

    Finds all-zero, unset and 255-filled captures, prompt rows of zeros, dense layers filled with zeros, missing rows,
    duplicate experts, experts out of range, identical layers, and generated tokens that all carry the same experts;
    with --against also shifted layers or positions, renumbered experts, and agreement no better than chance.

    Example: `moeprobe trace check traces/served.parquet --against traces/again.parquet`
    """
    import shlex
    from dataclasses import asdict

    from moeprobe.cli.front.screen import Bar, console
    from moeprobe.recordings.check_trace import check_trace
    from moeprobe.runtime.object_stores import spell

    with Bar("rows") as bar:
        checked = check_trace(trace, against=against, match=match, watcher=bar)
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
        for finding in checked.findings:
            screen.print(finding.line, soft_wrap=True)
        if checked.overlap is not None and checked.sound:
            overlap = checked.overlap
            screen.print(
                f"Overlap of the choices in {_inputs_of(overlap)}: {overlap.here:.3f} (chance "
                f"{overlap.chance:.3f}); no shift of layers or positions makes it clearly larger.",
                soft_wrap=True,
            )
        if checked.load_only:
            screen.print(
                "It holds counts of choices and no tokens: they were checked when they were imported.",
                soft_wrap=True,
            )
        elif not checked.findings:
            screen.print("No fault of capture is known that looks like this.", soft_wrap=True)
        if checked.sound and not checked.load_only:
            recordings = shlex.join(spell(path) for path in (against, trace) if path is not None)
            screen.print(f"Next: moeprobe audit {recordings}", soft_wrap=True)
    if not checked.sound:
        raise typer.Exit(FAILED)


def _inputs_of(overlap: "Overlap") -> str:
    """Return which of the common inputs were looked at."""
    if overlap.inputs == overlap.common:
        return "the common input" if overlap.common == 1 else f"all {overlap.common:,} common inputs"
    return f"the first {overlap.inputs} of {overlap.common:,} common inputs, enough to see a shift"
