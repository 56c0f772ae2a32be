"""``moeprobe import trace``."""

from pathlib import Path
from typing import Annotated

import typer


def import_trace(
    log: Annotated[
        Path, typer.Argument(metavar="LOG.jsonl", help="One JSON object per MoE layer of one request.")
    ],
    trace: Annotated[Path, typer.Argument(metavar="DST.parquet", help="File of the new trace.")],
    num_experts: Annotated[
        int | None, typer.Option(help="Number of experts per layer, if the log does not say.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in tables; default: the file's name.")
    ] = None,
    data: Annotated[str, typer.Option(help="Name of the requests in tables.")] = "requests",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST.parquet.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Make a routing trace from a server's log: JSON lines with id, layer, num_experts, experts, and gates if known.

    A line is `{"id": "req-17", "layer": "blocks.3", "num_experts": 8, "experts": [[3, 5], [0, 1]]}`: the experts that
    each token chose. docs/guide/recorded-routing.md describes the fields.

    Example: `moeprobe import trace routing.jsonl traces/monday.parquet --num-experts 64`
    """
    from dataclasses import asdict

    from moeprobe.cli.commands.check_trace import said
    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import Bar, console
    from moeprobe.recordings.import_log import import_trace

    with Bar("bytes") as bar:
        imported = import_trace(
            log, trace, num_experts=num_experts, name=name, data=data, overwrite=overwrite, watcher=bar
        )
    if json:
        content = {
            "file": str(imported.path),
            "requests": imported.requests,
            "layers": imported.layers,
            "tokens": imported.tokens,
            "bytes": imported.nbytes,
            "findings": [asdict(finding) for finding in imported.findings],
            "unordered": imported.unordered,
        }
        print_json(content)
        return
    screen = console()
    screen.print(
        f"{imported.requests:,} requests, layers {', '.join(imported.layers)}: {imported.tokens:,} tokens in all "
        f"layers, {imported.nbytes:,} bytes.",
        soft_wrap=True,
    )
    for line in said(imported.findings):
        screen.print(line, soft_wrap=True)
    if imported.unordered:
        screen.print(
            f"Neither gates nor ordered_by were logged of {', '.join(imported.unordered)}, so it is not known which of "
            "a token's experts came first: sets of experts will be compared, without top-1 match, and the load will "
            "count all choices.",
            soft_wrap=True,
        )
    screen.print(f"Written: {imported.path}", soft_wrap=True)
    screen.print(f"Next: moeprobe analyze-trace {imported.path} OTHER.parquet", soft_wrap=True)
