"""``moeprobe trace`` and ``moeprobe import trace``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moeprobe.cli.options import Checkpoints, Common, Data, numbers, probe

_Out = Annotated[Path | None, typer.Option(help="Folder for the traces; required.")]


def trace(
    checkpoints: Checkpoints,
    data: Data = None,
    view: Annotated[
        str, typer.Option(help="Perturbation to record as well; see: moeprobe list views.")
    ] = "clean",
    severities: Annotated[
        str | None, typer.Option(help="Comma-separated severities; default: the view's own steps.")
    ] = None,
    full_gates: Annotated[
        bool,
        typer.Option("--full-gates", help="Keep every gate, not only those of chosen experts and a summary."),
    ] = False,
    *,
    common: Common,
) -> None:
    """Record which experts each token chooses, as Parquet files: OUT/CHECKPOINT/VIEW.parquet.

    Of a view its reference is recorded too: the clean image, or the first of two random views.

    Example: `moeprobe trace checkpoints/demo-prc --view gaussian_noise --severities 0.1,0.2 --out traces`
    """
    import json

    from moeprobe import api
    from moeprobe.cli.run import print_plan
    from moeprobe.cli.screen import Bar, console, print_warnings

    options = common.options()
    asked: dict[str, Any] = {
        "data": data,
        "view": view,
        "severities": numbers(severities, "--severities"),
        "all_gates": full_gates,
    }
    if common.dry_run:
        plan = api.plan_record(checkpoints, options=options, **asked)
        print_plan(plan, as_json=common.json, before="the last file is closed")
        return
    with Bar() as bar:
        found = api.record(checkpoints, options=options, watcher=bar, **asked)
    files = [str(path) for path in found.files]
    if common.json:
        print(
            json.dumps(
                {
                    "files": files,
                    "images": found.images,
                    "layers": found.layers,
                    "bytes": found.nbytes,
                    "sidecar": found.sidecar,
                }
            )
        )
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


trace = probe(trace, out=_Out)


def import_trace(
    log: Annotated[
        Path, typer.Argument(metavar="LOG.jsonl", help="One JSON object per MoE layer of one request.")
    ],
    trace: Annotated[Path, typer.Argument(metavar="DST.parquet", help="File of the new trace.")],
    num_experts: Annotated[
        int | None, typer.Option(help="Experts of every layer, where the log does not say.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What tables call the model; default: the file's name.")
    ] = None,
    data: Annotated[str, typer.Option(help="What tables call the requests.")] = "requests",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST.parquet.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Make a routing trace of a server's log: JSON lines with id, layer, num_experts, experts, and gates if known.

    A line is `{"id": "req-17", "layer": "blocks.3", "num_experts": 8, "experts": [[3, 5], [0, 1]]}`: the experts that
    each token chose, best first. docs/guide/recorded-routing.md describes the fields.

    Example: `moeprobe import trace routing.jsonl traces/monday.parquet --num-experts 64`
    """
    import json as json_module

    from moeprobe.cli.screen import Bar, console
    from moeprobe.routing.traces.import_log import import_trace

    with Bar("bytes") as bar:
        found = import_trace(
            log, trace, num_experts=num_experts, name=name, data=data, overwrite=overwrite, watcher=bar
        )
    if json:
        content = {
            "file": str(found.path),
            "requests": found.requests,
            "layers": found.layers,
            "tokens": found.tokens,
            "bytes": found.nbytes,
            "unordered": found.unordered,
        }
        print(json_module.dumps(content, ensure_ascii=False))
        return
    screen = console()
    screen.print(
        f"{found.requests:,} requests, layers {', '.join(found.layers)}: {found.tokens:,} tokens in all layers, "
        f"{found.nbytes:,} bytes.",
        soft_wrap=True,
    )
    if found.unordered:
        screen.print(
            f"No gates were logged of {', '.join(found.unordered)}, so it is not known which of a token's experts came "
            "first: sets of experts will be compared, without top-1 match and load.",
            soft_wrap=True,
        )
    screen.print(f"Written: {found.path}", soft_wrap=True)
    screen.print(f"Next: moeprobe analyze-trace {found.path} OTHER.parquet", soft_wrap=True)
