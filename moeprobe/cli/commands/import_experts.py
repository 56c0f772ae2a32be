"""``moeprobe import routed-experts``."""

from pathlib import Path
from typing import Annotated

import typer


def import_routed_experts(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Responses of the server, or what a trainer saved: JSON lines, JSON, or torch.",
        ),
    ],
    trace: Annotated[Path, typer.Argument(metavar="DST.parquet", help="File of the new trace.")],
    model_config: Annotated[
        Path,
        typer.Option(
            help="config.json of the served model: its number of experts, and which layers have them."
        ),
    ],
    reader: Annotated[
        str | None,
        typer.Option(
            help="Format of the responses (moeprobe list readers); default: recognized by their keys."
        ),
    ] = None,
    ordered_by: Annotated[
        str | None,
        typer.Option(
            help="What the server orders a token's experts by, if you know: gates, logits, or scores (e.g. with a "
            "bias). Default: they are taken as sets."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in tables; default: the file's name.")
    ] = None,
    data: Annotated[str, typer.Option(help="Name of the requests in tables.")] = "requests",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST.parquet.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Make a routing trace from an inference server's responses with routed experts.

    vLLM, SGLang, TensorRT-LLM, Dynamo, SkyRL, prime-rl, NeMo-RL, slime, verl, Megatron-LM, MoE Atlas and llama.cpp
    are recognized by their keys. Captures that no router can have produced are refused; missing data are counted and
    named. More is in docs/guide/recorded-routing.md.

    Example: `moeprobe import routed-experts responses.jsonl traces/served.parquet --model-config config.json`
    """
    from dataclasses import asdict

    from moeprobe.cli.commands.check_trace import said
    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import Bar, console
    from moeprobe.recordings.import_experts import import_routed_experts

    with Bar("bytes") as bar:
        imported = import_routed_experts(
            files,
            trace,
            model_config=model_config,
            reader=reader,
            ordered_by=ordered_by,
            name=name,
            data=data,
            overwrite=overwrite,
            watcher=bar,
        )
    if json:
        content = asdict(imported) | {"path": str(imported.path)}
        content["file"], content["bytes"] = content.pop("path"), content.pop("nbytes")
        print_json(content)
        return
    layers = imported.layers
    what = f"{imported.counted:,} choices" if imported.counted else f"{imported.tokens:,} tokens"
    lines = [
        f"{imported.requests:,} requests, {len(layers)} layers ({layers[0]} to {layers[-1]}): "
        f"{what}, {imported.nbytes:,} bytes; read as {', '.join(imported.readers)}.",
        *imported.missing,
        *said(imported.findings),
    ]
    if imported.counted:
        lines.append(
            "Which token made a choice is not in the file: there is the load of the experts alone, and no match."
        )
    elif imported.unordered:
        lines.append(
            "Servers do not say which of a token's experts came first: sets of experts will be compared, without top-1 "
            "match, and the load will count all choices."
        )
    lines += [f"Written: {imported.path}", f"Next: moeprobe analyze-trace {imported.path} OTHER.parquet"]
    for line in lines:
        console().print(line, soft_wrap=True)
