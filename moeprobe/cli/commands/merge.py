"""``moeprobe merge``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moeprobe.cli.front.early import check_folder
from moeprobe.cli.front.finished import result_of
from moeprobe.cli.front.json_output import print_json
from moeprobe.cli.front.options import AsJson, Download, Full, Overwrite, Svg, command_line
from moeprobe.probes.engine.options import Options


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="SHARD...", help="Folders written with --shard, in any order."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")],
    overwrite: Overwrite = False,
    device: Annotated[
        str, typer.Option(help="Device for the few images that are drawn: auto, cpu, cuda or mps.")
    ] = "auto",
    svg: Svg = False,
    download: Download = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Run the Python code that the shards name for their models (py:MODULE:FACTORY)."
        ),
    ] = False,
    full: Full = False,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether the shards are complete; write nothing.")
    ] = False,
) -> None:
    """Merge the shards of a run that was measured in parts with --shard: tables, intervals, figures.

    The folder is the one that a single process would have written, byte for byte (except for times in table.json); the
    shards are left unchanged. Shards that are missing, given twice or from another run are refused.

    Example: `moeprobe merge reports/sweep-1-of-2 reports/sweep-2-of-2 --out reports/sweep`
    """
    from moeprobe.cli.front.screen import Bar
    from moeprobe.cli.front.show import show
    from moeprobe.probes.engine import merging

    shards = merging.read_shards(runs)
    if dry_run:
        summary = {"shards": len(shards.paths), "images": shards.images, "probe": shards.probe.name}
        text = f"{len(shards.paths)} shards of {shards.probe.name} with {shards.images:,} images: complete."
        if as_json:
            print_json(summary)
        else:
            print(f"{text} Nothing was written.")
        return
    merging.check_destination(shards, out)
    check_folder(out, overwrite=overwrite)
    options = Options(out=out, overwrite=overwrite, device=device, svg=svg, command=command_line())

    def compute() -> Any:
        with Bar() as bar:
            return merging.merge(shards, options, trust=trust, watcher=bar)

    show(shards.probe, result_of(compute), out=out, as_json=as_json, full=full)
