"""Recorded traces on the screen: files, layers, sizes."""

import json
from typing import TYPE_CHECKING

from moeprobe.cli.screen import console, print_warnings

if TYPE_CHECKING:
    from moeprobe.probes.trace.measure import Recorded


def print_traces(found: "Recorded", *, as_json: bool) -> None:
    """Print what was recorded, the files, and the next command."""
    files = [str(path) for path in found.files]
    if as_json:
        content = {
            "files": files,
            "images": found.images,
            "layers": found.layers,
            "bytes": found.nbytes,
            "sidecar": found.sidecar,
        }
        print(json.dumps(content))
        return
    screen = console()
    rows = found.images * sum(len(layers) for layers in found.layers.values())
    views = len(files) // len(found.layers)
    for name, layers in found.layers.items():
        screen.print(f"{name}: {', '.join(layers)}", soft_wrap=True)
    skipped = len(found.sidecar["skipped_images"])
    without = f" ({skipped} unreadable ones skipped)" if skipped else ""
    screen.print(
        f"{found.images:,} images of {found.sidecar['request']['data']}{without}, {found.nbytes:,} bytes: "
        f"{found.nbytes / (rows * views):,.0f} per image and layer.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, found.sidecar)
    screen.print(f"Written: {', '.join(files)}", soft_wrap=True)
    screen.print(f"Next: moeprobe analyze-trace {' '.join(files[:views])}", soft_wrap=True)
