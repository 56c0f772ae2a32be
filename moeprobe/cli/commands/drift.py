"""``moeprobe trace drift``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.early import check_folder, check_traces
from moeprobe.cli.front.finished import result_of
from moeprobe.cli.front.options import AsJson, IntervalSeed, Overwrite, Svg, command_line, names

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


def drift(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Files of moeprobe trace record or import, one per checkpoint, in the order of the training.",
        ),
    ],
    layers: Annotated[
        str | None, typer.Option(help="MoE layers, comma-separated, e.g. layers.3; default all.")
    ] = None,
    seed: IntervalSeed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and the figure; default: print only.")
    ] = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """How far does routing move during training? Each recorded checkpoint against the first and the last.

    Agreement with κ and intervals in each layer, for checkpoints of one model on the same inputs.

    Example: `moeprobe trace drift traces/step-0/clean.parquet traces/step-100/clean.parquet
    traces/step-200/clean.parquet`
    """
    check_traces(traces)
    check_folder(out, overwrite=overwrite)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar, print_result
    from moeprobe.cli.front.summary_output import by_view

    def compute() -> "Result":
        with Bar("inputs") as bar:
            return api.drift(
                traces,
                layers=tuple(names(layers)) or None,
                seed=seed,
                out=out,
                overwrite=overwrite,
                svg=svg,
                command=command_line(),
                watcher=bar,
            )

    print_result(
        result_of(compute),
        out=out,
        as_json=json,
        show=lambda shown: by_view(shown, title="Drift of recorded routing"),
    )
