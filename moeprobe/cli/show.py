"""What a probe found, printed as its layout says."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from moeprobe.cli import short, tables
from moeprobe.cli.screen import console, print_result
from moeprobe.cli.show_overlay import print_overlays
from moeprobe.cli.show_traces import print_traces
from moeprobe.probes.base import Layout, Probe

if TYPE_CHECKING:
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
            _print_rates(result)


def _tables(
    probe: Probe[Any], result: "Result", *, full: bool
) -> "Callable[[Result], Sequence[Table | str]]":
    title = probe.heading(result.sidecar)
    layouts: dict[Layout, Callable[[Result], Sequence[Table | str]]] = {
        Layout.SIDE_BY_SIDE: partial(short.side_by_side, title=title, full=full),
        Layout.ALONG_SEVERITY: partial(short.along_severity, title=title, full=full),
        Layout.ALL: partial(tables.side_by_side, title=title),
        Layout.FEW_SHOTS: short.few_shots,
        Layout.BY_VIEW: partial(short.by_view, title=title),
    }
    return layouts[probe.layout]


def _print_rates(result: "Result") -> None:
    for name, rate in result.sidecar["images_per_second"].items():
        console().print(f"{name}: {rate:,.0f} images/s on {result.sidecar['device']}", style="dim")
