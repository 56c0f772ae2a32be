"""``moeprobe trace analyze``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.early import check_folder, check_traces
from moeprobe.cli.front.finished import result_of
from moeprobe.cli.front.options import AsJson, Full, IntervalSeed, Overwrite, Svg, command_line, names

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


def analyze_trace(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Files of moeprobe trace record or trace import; the first is the reference.",
        ),
    ],
    layers: Annotated[
        str | None, typer.Option(help="MoE layers, comma-separated, e.g. blocks.3; default all.")
    ] = None,
    expert_map: Annotated[
        Path | None,
        typer.Option(
            help="JSON map from the first trace's experts to the other traces' experts (null = removed), for a pruned "
            "or merged model."
        ),
    ] = None,
    seed: IntervalSeed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and figures; default: print only.")
    ] = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    full: Full = False,
    json: AsJson = False,
) -> None:
    """Confidence, load and match of recorded routing, without the model.

    Each trace but the first is compared with the first, input by input and token by token.

    Example: `moeprobe trace analyze traces/demo-prc/clean.parquet traces/demo-prc/gaussian_noise-0.1.parquet`
    """
    check_traces(traces)
    check_folder(out, overwrite=overwrite)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar, print_result
    from moeprobe.cli.front.summary_output import along_severity, side_by_side
    from moeprobe.probes.analyze_trace.figure import along_a_severity, labeled, steps_alone

    def compute() -> "Result":
        with Bar("inputs") as bar:
            return api.analyze_trace(
                traces,
                expert_map=expert_map,
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
        show=lambda compared: (
            along_severity(steps_alone(compared), title="Recorded routing", full=full)
            if along_a_severity(compared)
            else side_by_side(labeled(compared), title="Recorded routing", full=full)
        ),
    )
