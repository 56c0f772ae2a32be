"""What a probe found, printed as its layout says."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from moeprobe.cli.front import summary_output, tables
from moeprobe.cli.front.json_output import print_json
from moeprobe.cli.front.screen import console, print_result, print_warnings
from moeprobe.cli.front.show_overlay import print_overlays
from moeprobe.probes.base import Layout, Probe
from moeprobe.results.naming import with_names

if TYPE_CHECKING:
    from moeprobe.probes.trace.measure import Recorded
    from moeprobe.results.folder import Result


def show(probe: Probe[Any], result: Any, *, out: Path | None, as_json: bool, full: bool) -> None:
    """Print the result of a probe and its files, or everything as JSON."""
    if probe.layout is Layout.TRACES:
        print_traces(result, as_json=as_json)
    elif probe.layout is Layout.OVERLAYS:
        print_overlays(result, out=out, as_json=as_json)
    else:
        print_result(result, out=out, as_json=as_json, show=_tables(probe, result, full=full))
        if probe.timed and not as_json:
            _print_rates(with_names(result))


def _tables(
    probe: Probe[Any], result: "Result", *, full: bool
) -> "Callable[[Result], Sequence[Table | str]]":
    title = probe.heading(result.sidecar)
    layouts: dict[Layout, Callable[[Result], Sequence[Table | str]]] = {
        Layout.SIDE_BY_SIDE: partial(summary_output.side_by_side, title=title, full=full),
        Layout.ALONG_SEVERITY: partial(summary_output.along_severity, title=title, full=full),
        Layout.ALL: partial(tables.side_by_side, title=title),
        Layout.FEW_SHOTS: summary_output.few_shots,
        Layout.BY_VIEW: partial(summary_output.by_view, title=title),
    }
    return layouts[probe.layout]


def _print_rates(result: "Result") -> None:
    for name, rate in result.sidecar["images_per_second"].items():
        console().print(f"{name}: {rate:,.0f} images/s on {result.sidecar['device']}", style="dim")


# Recorded traces on the screen: files, layers, sizes.


def print_traces(result: "Recorded", *, as_json: bool) -> None:
    """Print the size of the recording, the files, and the next command."""
    files = [str(path) for path in result.files]
    if as_json:
        content = {
            "files": files,
            "images": result.images,
            "layers": result.layers,
            "bytes": result.nbytes,
            "sidecar": result.sidecar,
        }
        print_json(content)
        return
    screen = console()
    rows = result.images * sum(len(layers) for layers in result.layers.values())
    views = len(files) // len(result.layers)
    for name, layers in result.layers.items():
        screen.print(f"{name}: {', '.join(layers)}", soft_wrap=True)
    skipped = len(result.sidecar.skipped_images)
    without = f" ({skipped} unreadable ones skipped)" if skipped else ""
    screen.print(
        f"{result.images:,} {result.inputs}{without}, {result.nbytes:,} bytes: "
        f"{result.nbytes / (rows * views):,.0f} per input and layer.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, result.sidecar)
    screen.print(f"Written: {', '.join(files)}", soft_wrap=True)
    screen.print(f"Next: moeprobe trace analyze {' '.join(files[:views])}", soft_wrap=True)
