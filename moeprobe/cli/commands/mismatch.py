"""``moeprobe trace mismatch``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.early import check_checkpoints, check_folder, check_traces
from moeprobe.cli.front.finished import result_of
from moeprobe.cli.front.options import AsJson, IntervalSeed, Overwrite, Svg, command_line, names

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


def mismatch(
    model: Annotated[str, typer.Argument(metavar="hf:MODEL", help="The language model that was served.")],
    tokens: Annotated[
        Path,
        typer.Option(
            help="The server's responses, with token ids and log-probabilities of the generated tokens."
        ),
    ],
    routing: Annotated[Path, typer.Option(help="Trace of the same requests: moeprobe trace import.")],
    gates: Annotated[
        str,
        typer.Option(
            help="Weights of the replayed experts: recomputed by the model's routers, or replayed from the trace."
        ),
    ] = "recomputed",
    layers: Annotated[
        str | None,
        typer.Option(help="MoE layers that replay the server's routing, comma-separated; default all."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Largest number of requests, from the first one on.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests per batch.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    seed: IntervalSeed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and the figure; default: print only.")
    ] = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """How much of the mismatch between a server and the model is routing?

    The model scores the server's generated tokens twice: with its own routing, and with the server's choices of
    experts. Reports, for both, mean absolute difference of log-probability and k3 divergence from the server's, with
    intervals over requests.

    Example: `moeprobe trace mismatch hf:model --tokens responses.jsonl --routing traces/served.parquet`
    """
    check_checkpoints([model])
    check_traces([routing])
    check_folder(out, overwrite=overwrite)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar, print_result
    from moeprobe.cli.front.summary_output import side_by_side

    def compute() -> "Result":
        with Bar("requests") as bar:
            return api.mismatch(
                model,
                tokens=tokens,
                routing=routing,
                gates=gates,
                layers=tuple(names(layers)) or None,
                limit=limit,
                batch_size=batch_size,
                device=device,
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
        show=lambda shown: side_by_side(shown, title="Log-probabilities of server and model", full=True),
    )
