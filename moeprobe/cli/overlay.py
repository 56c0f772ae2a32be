"""``moeprobe overlay``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.options import (
    Checkpoints,
    Common,
    Data,
    File,
    Images,
    drawing,
    names,
    numbers,
    require_folder,
)

if TYPE_CHECKING:
    from rich.table import Table

    from moeprobe.probes.overlay.measure import OverlayResult


@drawing
def overlay(
    checkpoints: Checkpoints,
    data: Data = None,
    images: Images = None,
    file: File = None,
    count: Annotated[int, typer.Option(help="How many images, if none is named.")] = 4,
    view: Annotated[str, typer.Option(help="A view with a severity.")] = "gaussian_noise",
    severity: Annotated[float | None, typer.Option(help="Its severity; 0.2 if not given.")] = None,
    animate: Annotated[
        bool,
        typer.Option("--animate", help="Show the routing as the severity grows: GIF, frames and a strip."),
    ] = False,
    severities: Annotated[
        str | None,
        typer.Option(help="With --animate: the steps, comma-separated; default: the view's own."),
    ] = None,
    *,
    common: Common,
) -> None:
    """Draw the expert of each patch into clean and perturbed images, with patches that changed theirs outlined.

    Each expert tints its patches in a color of its own. With --animate each layer gets a looping GIF, its single
    frames, and a strip of the first image: all severities are one draw, scaled, and outlined is what differs from the
    clean image.

    Example: `moeprobe overlay checkpoints/demo-baseline checkpoints/demo-prc --severity 0.2 --out reports/overlay`
    """
    import json

    from moeprobe import api
    from moeprobe.cli.run import print_plan
    from moeprobe.cli.screen import Bar, console, print_files, print_warnings, records

    options = common.options()
    asked: dict[str, Any] = {
        "data": data, "images": names(images), "files": file or [], "count": count, "view": view,
        "severity": severity, "severities": numbers(severities, "--severities"), "animate": animate,
    }  # fmt: skip
    if common.dry_run:
        plan = api.plan_overlay(checkpoints, options=options, **asked)
        print_plan(plan, as_json=common.json, before="drawing")
        return
    require_folder(options.out, json=common.json, command="overlay")
    with Bar() as bar:
        result = api.overlay(checkpoints, options=options, watcher=bar, **asked)
    if common.json:
        print(json.dumps({"patches": records(result.table), "files": [str(path) for path in result.files]}))
        return
    screen = console()
    screen.print(*_tables(result, view))
    screen.print(
        f"Images of {result.sidecar['request']['data']}, to be looked at; for numbers with intervals: moeprobe sweep.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, result.sidecar)
    assert options.out is not None
    print_files(screen, options.out)


def _tables(result: "OverlayResult", view: str) -> "list[Table]":
    """Return how many of the compared patches changed: a line per layer, checkpoint and image, severity by severity."""
    from rich.table import Table

    from moeprobe.cli.fit import fit
    from moeprobe.cli.screen import console

    severities = list(dict.fromkeys(item.severity for item in result.overlays))
    table = Table(title=f"Patches that changed their expert, {view} at severity", title_justify="left")
    for column in ("layer", "checkpoint", "image"):
        table.add_column(column)
    for severity in severities:
        table.add_column(f"{severity:g}", justify="right")
    lines: dict[tuple[str, str, str], list[str]] = {}
    for item in result.overlays:
        cells = lines.setdefault((item.layer, item.checkpoint, item.image_id), [])
        cells.append(f"{item.changed.sum()} of {item.compared.sum()}")
    for line, cells in lines.items():
        table.add_row(*line, *cells)
    return fit(table, keys=3, width=console().width)
