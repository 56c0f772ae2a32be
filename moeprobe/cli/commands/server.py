"""``moeprobe server``: a running server against the model that it serves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.early import check_folder
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import AsJson, Dtype, IntervalSeed, Overwrite, Svg, command_line
from moeprobe.errors import UserError

if TYPE_CHECKING:
    from moeprobe.studies.server import ServerResult


def server(
    address: Annotated[
        str, typer.Argument(metavar="URL", help="Address of vLLM or SGLang, e.g. http://127.0.0.1:8000.")
    ],
    model: Annotated[
        str, typer.Option(help="Folder of the served model, with its tokenizer and config.json.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for answers, traces, tables and the page.")],
    texts: Annotated[
        Path | None,
        typer.Option(help="Prompts: a .txt with one per line, or a .jsonl; default: random tokens."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests in each run.")] = 400,
    batches: Annotated[
        str,
        typer.Option(help="Concurrent requests, comma-separated: a run for each; with 1 always two runs."),
    ] = "1,8,32",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each request.")] = 32,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for an answer; each request is tried three times.")
    ] = 120.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests per batch of the model here.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps, for the model here.")] = "auto",
    dtype: Dtype = "auto",
    seed: IntervalSeed = 0,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """Does a running server route as the model that it serves, and as itself?

    Sends each request alone, again, and many at a time, and keeps every answer. Then it imports the routing, checks it
    for faults of capture, compares it with the model and with the server's other runs, and splits the difference of
    log-probabilities into routing and the rest. After Ctrl-C the same command continues. With --dtype of the server's
    precision, the model in float32 stands beside the server: what precision alone changes.

    Example: `moeprobe server http://127.0.0.1:8000 --model model --texts prompts.txt --out reports/server`
    """
    check_folder(out, overwrite=overwrite)
    sizes = _sizes(batches)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar

    with Bar("requests") as bar:
        result = api.check_server(
            address,
            model=model,
            texts=texts,
            requests=requests,
            batches=sizes,
            max_tokens=max_tokens,
            timeout=timeout,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            seed=seed,
            out=out,
            overwrite=overwrite,
            svg=svg,
            command=command_line(),
            watcher=bar,
        )
    _print(result, as_json=json)


def _sizes(batches: str) -> list[int]:
    sizes = [part.strip() for part in batches.split(",")]
    if not all(size.isdigit() and int(size) for size in sizes):
        raise UserError(f"--batches takes whole numbers from 1 up, comma-separated; got {batches!r}.")
    return [int(size) for size in sizes]


def _print(result: "ServerResult", *, as_json: bool) -> None:
    from dataclasses import asdict

    from moeprobe.cli.front.screen import console, records
    from moeprobe.runtime.files import display_path
    from moeprobe.studies.server.result import PAGE

    if as_json:
        print_json(
            {
                "server": result.server,
                "requests": result.requests,
                "sentences": result.sentences,
                "findings": [asdict(finding) for finding in result.checked.findings],
                "tables": {name: records(run.table) for name, run in result.runs.items()},
                "left_out": result.left_out,
                "sidecar": result.sidecar,
                "out": str(display_path(result.folder)),
            }
        )
        return
    screen = console()
    verdict = f"{result.server}, {result.requests:,} requests: {result.sentences[0]}"
    screen.print(verdict, style="bold", soft_wrap=True)
    for line in result.details:
        screen.print(line, soft_wrap=True)
    screen.print(f"The page: {display_path(result.folder)}/{PAGE}", soft_wrap=True)
