"""Recorded traces on the screen: files, layers, sizes."""

import json
from typing import TYPE_CHECKING

from moeprobe.cli.screen import console, print_warnings

if TYPE_CHECKING:
    from moeprobe.probes.trace.measure import Recorded


def print_traces(recorded: "Recorded", *, as_json: bool) -> None:
    """Print what was recorded, the files, and the next command."""
    files = [str(path) for path in recorded.files]
    if as_json:
        content = {
            "files": files,
            "images": recorded.images,
            "layers": recorded.layers,
            "bytes": recorded.nbytes,
            "sidecar": recorded.sidecar,
        }
        print(json.dumps(content))
        return
    screen = console()
    rows = recorded.images * sum(len(layers) for layers in recorded.layers.values())
    views = len(files) // len(recorded.layers)
    for name, layers in recorded.layers.items():
        screen.print(f"{name}: {', '.join(layers)}", soft_wrap=True)
    skipped = len(recorded.sidecar["skipped_images"])
    without = f" ({skipped} unreadable ones skipped)" if skipped else ""
    screen.print(
        f"{recorded.images:,} {recorded.inputs}{without}, {recorded.nbytes:,} bytes: "
        f"{recorded.nbytes / (rows * views):,.0f} per input and layer.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, recorded.sidecar)
    screen.print(f"Written: {', '.join(files)}", soft_wrap=True)
    screen.print(f"Next: moeprobe analyze-trace {' '.join(files[:views])}", soft_wrap=True)
