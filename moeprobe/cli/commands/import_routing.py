"""``moeprobe trace import``: a server's log, or its responses with routed experts."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.environment import print_json
from moeprobe.errors import UserError
from moeprobe.runtime.catalog import READERS

if TYPE_CHECKING:
    from moeprobe.recordings.import_experts import ImportedExperts
    from moeprobe.recordings.import_log import ImportedTrace


def import_routing(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Responses of a server, what a trainer saved, or counts per expert (JSON lines, JSON, torch, CSV or "
            "GGUF), with --model-config; or a routing log, one JSON object per MoE layer of one request.",
        ),
    ],
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="DST.parquet", help="File of the new trace; with --rows-per-file a folder of parts."
        ),
    ],
    model_config: Annotated[
        Path | None,
        typer.Option(
            help="For responses: config.json of the served model, with its number of experts and its MoE layers."
        ),
    ] = None,
    num_experts: Annotated[
        int | None, typer.Option(help="For a log: number of experts per layer, if the log does not say.")
    ] = None,
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
    start: Annotated[
        int | None,
        typer.Option(
            help="Token of the first row of each sequence, if the server was asked to leave out leading rows."
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            help="What was sampled: request (its choices are one sample), or prompt (so are all sequences of one "
            "prompt, as in groups of GRPO)."
        ),
    ] = "request",
    ids_key: Annotated[
        str | None,
        typer.Option(
            help="Field of the generated tokens' ids, or of the whole sequence's, if it is not recognized."
        ),
    ] = None,
    prompt_key: Annotated[
        str | None, typer.Option(help="Field of the prompt's token ids, if it is not recognized.")
    ] = None,
    routing_key: Annotated[
        str | None,
        typer.Option(
            help="Field of the routed experts or router logits, if it is not recognized; a.b is b inside a."
        ),
    ] = None,
    gates: Annotated[
        str | None,
        typer.Option(
            help="How saved router logits become gates, if config.json does not say: softmax or sigmoid."
        ),
    ] = None,
    image_token_id: Annotated[
        int | None,
        typer.Option(
            help="For responses: id of the tokens that stand for parts of a picture, if config.json does not say."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in tables; default: the file's name.")
    ] = None,
    data: Annotated[str, typer.Option(help="Name of the requests in tables.")] = "requests",
    rows_per_file: Annotated[
        int | None,
        typer.Option(
            help="Write parts of at least so many rows into the folder DST; a row is a layer of a request."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the trace that is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Make a routing trace from an inference server's responses with routed experts, or from a routing log.

    vLLM, SGLang, TensorRT-LLM, Dynamo, SkyRL, prime-rl, NeMo-RL, slime, verl, Megatron-LM, MoE Atlas and llama.cpp
    are recognized by their keys, and counts per expert by their columns or keys. Captures that no router can have
    produced are refused; missing data are counted and named. A line of a log is
    `{"id": "req-17", "layer": "blocks.3", "num_experts": 8, "experts": [[3, 5], [0, 1]]}`: the experts that each token
    chose. More is in docs/guide/recorded-routing.md.

    Example: `moeprobe trace import responses.jsonl traces/served.parquet --model-config config.json`
    """
    if model_config is None:
        _check_log(
            files,
            {
                "--reader": reader,
                "--ordered-by": ordered_by,
                "--start": start,
                "--cluster": None if cluster == "request" else cluster,
                "--ids-key": ids_key,
                "--prompt-key": prompt_key,
                "--routing-key": routing_key,
                "--gates": gates,
                "--image-token-id": image_token_id,
            },
        )
    elif num_experts is not None:
        raise UserError("--num-experts is for logs; --model-config says it for responses: leave one out.")
    from moeprobe.cli.front.screen import Bar, console

    with Bar("bytes") as bar:
        if model_config is None:
            from moeprobe.recordings.import_log import import_trace

            log = import_trace(
                files[0],
                trace,
                num_experts=num_experts,
                name=name,
                data=data,
                rows_per_file=rows_per_file,
                overwrite=overwrite,
                watcher=bar,
            )
            content, lines = _content_of_log(log), _lines_of_log(log)
        else:
            # Here, since it imports torch, which a log is read without.
            from moeprobe.recordings.import_experts import import_routed_experts

            experts = import_routed_experts(
                files,
                trace,
                model_config=model_config,
                reader=reader,
                ordered_by=ordered_by,
                start=start,
                cluster=cluster,
                ids_key=ids_key,
                prompt_key=prompt_key,
                routing_key=routing_key,
                gates=gates,
                image_token_id=image_token_id,
                name=name,
                data=data,
                rows_per_file=rows_per_file,
                overwrite=overwrite,
                watcher=bar,
            )
            content, lines = _content_of_responses(experts), _lines_of_responses(experts)
    if json:
        print_json(content)
        return
    lines += [f"Written: {trace}", f"Next: moeprobe trace check {trace}"]
    for line in lines:
        console().print(line, soft_wrap=True)


def _check_log(files: list[Path], options: dict[str, object]) -> None:
    """Refuse options that only responses take."""
    for flag in (flag for flag, value in options.items() if value is not None):
        raise UserError(f"{flag} is for a server's responses, which need --model-config config.json too.")
    if len(files) > 1:
        raise UserError("A log is one file; a server's responses need --model-config config.json.")


def _content_of_log(imported: "ImportedTrace") -> dict[str, object]:
    return {
        "file": str(imported.path),
        "requests": imported.requests,
        "layers": imported.layers,
        "tokens": imported.tokens,
        "bytes": imported.nbytes,
        "findings": [asdict(finding) for finding in imported.findings],
        "unordered": imported.unordered,
    }


def _lines_of_log(imported: "ImportedTrace") -> list[str]:
    lines = [
        f"{imported.requests:,} requests, layers {', '.join(imported.layers)}: {imported.tokens:,} tokens in all "
        f"layers, {imported.nbytes:,} bytes.",
        *(finding.line for finding in imported.findings),
    ]
    if imported.unordered:
        lines.append(
            f"Neither gates nor ordered_by were logged of {', '.join(imported.unordered)}, so it is not known which of "
            "a token's experts came first: sets of experts will be compared, without top-1 match, and the load will "
            "count all choices."
        )
    return lines


def _content_of_responses(imported: "ImportedExperts") -> dict[str, object]:
    content = asdict(imported) | {"path": str(imported.path)}
    content["file"], content["bytes"] = content.pop("path"), content.pop("nbytes")
    return content


def _dialect(name: str) -> str:
    """Return the name of a reader, and what else it reads."""
    also = READERS.get(name).also
    return f"{name} (also {also})" if also else name


def _lines_of_responses(imported: "ImportedExperts") -> list[str]:
    from moeprobe.metrics.stats.bootstrap import MIN_IMAGES

    layers = imported.layers
    what = f"{imported.counted:,} choices" if imported.counted else f"{imported.tokens:,} tokens"
    inputs = "windows of counts" if imported.counted else "requests"
    lines = [
        f"{imported.requests:,} {inputs}, {len(layers)} layers ({layers[0]} to {layers[-1]}): "
        f"{what}, {imported.nbytes:,} bytes; read as {', '.join(map(_dialect, imported.readers))}.",
        *imported.missing,
        *(finding.line for finding in imported.findings),
    ]
    if imported.kinds:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in imported.kinds.items())
        lines.append(f"Tokens by kind: {counts}.")
    if imported.mtp_lines:
        lines.append(f"{imported.mtp_lines:,} lines of layers of multi-token prediction (MTP) are left out.")
    if imported.dependent:
        samples = imported.requests - imported.dependent
        lines.append(
            f"These are {samples:,} samples for intervals, since sequences of one prompt are not independent."
        )
    if imported.counted:
        lines.append(
            "Which token made a choice is not in the file: there is the load of the experts alone, and no match."
        )
        if imported.requests < MIN_IMAGES:
            lines.append(
                f"Values will have no intervals: they need at least {MIN_IMAGES} windows, such as steps counted apart."
            )
    elif imported.unordered:
        lines.append(
            "Servers do not say which of a token's experts came first: sets of experts will be compared, without top-1 "
            "match, and the load will count all choices."
        )
    return lines
