"""Overlays on the screen: how many patches changed their expert."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from moeprobe.cli.front.json_output import print_json
from moeprobe.cli.front.screen import console, print_files, print_warnings, records
from moeprobe.cli.front.tables import fit
from moeprobe.results.naming import names_in

if TYPE_CHECKING:
    from moeprobe.probes.overlay.measure import OverlayResult


def print_overlays(result: "OverlayResult", *, out: Path | None, as_json: bool) -> None:
    """Print the changed patches and the files, or the patches as JSON."""
    if as_json:
        print_json({"patches": records(result.table), "files": [str(path) for path in result.files]})
        return
    screen = console()
    request = result.sidecar.request
    screen.print(*_tables(result, request.view_name))
    screen.print(
        f"Images of {request['data']}, to be looked at; for numbers with intervals: moeprobe sweep.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, result.sidecar)
    assert out is not None
    print_files(screen, out)


def _tables(result: "OverlayResult", view: str) -> list[Table]:
    """Return how many of the compared patches changed: a line per layer, checkpoint and image, severity by severity."""
    severities = list(dict.fromkeys(item.severity for item in result.overlays))
    table = Table(title=f"Patches that changed their expert, {view} at severity", title_justify="left")
    for column in ("layer", "checkpoint", "image"):
        table.add_column(column)
    for severity in severities:
        table.add_column(f"{severity:g}", justify="right")
    lines: dict[tuple[str, str, str], list[str]] = {}
    names = names_in(result.sidecar)
    for item in result.overlays:
        key = (item.layer, names.get(item.checkpoint, item.checkpoint), item.image_id)
        cells = lines.setdefault(key, [])
        cells.append(f"{item.changed.sum()} of {item.compared.sum()}")
    for line, cells in lines.items():
        table.add_row(*line, *cells)
    return fit(table, keys=3, width=console().width)
