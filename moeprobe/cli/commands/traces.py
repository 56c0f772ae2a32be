"""``moeprobe trace analyze``, ``align``, ``balance``, ``locality``, ``drift``, ``mismatch``, ``check``, ``indexer``."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.early import check_checkpoints, check_folder, check_traces, result_of
from moeprobe.cli.front.environment import FAILED, print_json
from moeprobe.cli.front.options import (
    AsJson,
    Dtype,
    Full,
    IntervalSeed,
    Match,
    Names,
    Overwrite,
    Svg,
    command_line,
    names,
)
from moeprobe.probes.align import TO_ALIGN
from moeprobe.probes.drift import STEPS
from moeprobe.runtime.arguments import check_two

_Trace = Annotated[
    Path, typer.Argument(metavar="TRACE.parquet", help="File of moeprobe trace record or trace import.")
]
_Layers = Annotated[str | None, typer.Option(help="MoE layers, comma-separated, e.g. layers.3; default all.")]
_Out = Annotated[Path | None, typer.Option(help="Folder for tables and the figure; default: print only.")]
_OutWithFigures = Annotated[
    Path | None, typer.Option(help="Folder for tables and figures; default: print only.")
]

if TYPE_CHECKING:
    from moeprobe.cli.front.show import Printed
    from moeprobe.recordings.check_trace import Overlap
    from moeprobe.results.folder import Result


def _settings(
    layers: str | None, seed: int, out: Path | None, *, overwrite: bool, svg: bool
) -> dict[str, Any]:
    """Return the options that all analyses have, as the library takes them.

    Raises:
        UserError: no run can begin in the folder ``out``.
    """
    check_folder(out, overwrite=overwrite)
    return {
        "layers": tuple(names(layers)) or None,
        "seed": seed,
        "out": out,
        "overwrite": overwrite,
        "svg": svg,
        "command": command_line(),
    }


def _print(
    analysis: "Callable[..., Result]",
    inputs: str,
    show: "Callable[[Result], Printed]",
    settings: dict[str, Any],
    *,
    json: bool,
    called: Sequence[str] | None = None,
) -> None:
    """Run an analysis with ``_settings``, while a bar counts ``inputs``, and print its result."""
    from moeprobe.cli.front.screen import Bar, print_result

    def compute() -> "Result":
        with Bar(inputs) as bar:
            return analysis(**settings, watcher=bar)

    print_result(result_of(compute, names=called), out=settings["out"], as_json=json, show=show)


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
    match: Match = "names",
    called: Names = None,
    seed: IntervalSeed = 0,
    out: _OutWithFigures = None,
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
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import along_severity, side_by_side
    from moeprobe.probes.analyze_trace.layout import along_a_severity, labeled, steps_alone

    def show(compared: "Result") -> "Printed":
        if along_a_severity(compared):
            return along_severity(steps_alone(compared), title="Recorded routing", full=full)
        return side_by_side(labeled(compared), title="Recorded routing", full=full)

    new_names = tuple(names(called)) or None
    analysis = partial(api.analyze_trace, traces, expert_map=expert_map, match=match, names=new_names)
    _print(analysis, "inputs", show, settings, json=json, called=new_names)


def align(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Files of moeprobe trace record or trace import, of the same inputs."
        ),
    ],
    layers: _Layers = None,
    permutations: Annotated[
        int, typer.Option(help="Random orders of the inputs that show how well unrelated routing aligns.")
    ] = 200,
    match: Match = "names",
    called: Names = None,
    seed: IntervalSeed = 0,
    out: _OutWithFigures = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """Which experts of two recordings correspond? As moeprobe align, without the models.

    The alignment is fitted to one half of the inputs and judged on the other, both ways. Unrelated inputs show how
    well the best of many alignments agrees by chance.

    Example: `moeprobe trace align traces/demo-baseline/clean.parquet traces/demo-prc/clean.parquet`
    """
    check_two(traces, TO_ALIGN)
    check_traces(traces)
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import aligned

    new_names = tuple(names(called)) or None
    analysis = partial(api.align_traces, traces, permutations=permutations, match=match, names=new_names)
    show = partial(aligned, title="Aligned routing of two recordings, on held-out inputs")
    # Names are a part of what is asked here, so a finished run has those.
    _print(analysis, "inputs", show, settings, json=json)


def balance(
    trace: _Trace,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks of expert parallelism, each with as many consecutive experts."),
    ] = None,
    placement: Annotated[
        Path | None,
        typer.Option(
            help="Experts of each rank instead: JSON list of lists, the same by layer, an expert map of vllm-ascend, "
            "or CSV expert,rank."
        ),
    ] = None,
    windows: Annotated[
        int, typer.Option(min=2, help="Windows of requests that follow one another in the file.")
    ] = 8,
    layers: _Layers = None,
    seed: IntervalSeed = 0,
    out: _Out = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """Do hot experts stay hot over time, and is the load of expert-parallel ranks even?

    Overlap of the hot experts (the eighth with the most choices) of one window of requests and the next, with chance
    and the overlap of shuffled requests. With --ranks or --placement also the load of the busiest rank over the
    mean, and that of a greedy placement, made on the first half of the requests and judged on the second.

    Example: `moeprobe trace balance traces/served.parquet --ranks 8`
    """
    check_traces([trace])
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import load_over_time

    analysis = partial(api.trace_balance, trace, ranks=ranks, placement=placement, windows=windows)
    _print(analysis, "requests", load_over_time, settings, json=json)


def locality(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Files of moeprobe trace record or trace import; the first is the reference.",
        ),
    ],
    layers: _Layers = None,
    match: Match = "names",
    called: Names = None,
    seed: IntervalSeed = 0,
    out: _Out = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """Does the next token use the same experts, and how many experts does a batch of tokens touch?

    Share of a token's experts that the next token of the sequence has too, with chance from other sequences and from
    other tokens of the same sequence; share of the choices whose expert the last 1 to 16 tokens used; and distinct
    experts of 1, 2, 4, ... consecutive tokens, beside independent tokens. Prompt and generated tokens also apart.

    Example: `moeprobe trace locality traces/served.parquet`
    """
    check_traces(traces)
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import reuse_along_sequences

    new_names = tuple(names(called)) or None
    analysis = partial(api.trace_locality, traces, match=match, names=new_names)
    _print(analysis, "requests", reuse_along_sequences, settings, json=json, called=new_names)


def drift(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Files of moeprobe trace record or import, one per checkpoint, in the order of the training.",
        ),
    ],
    layers: _Layers = None,
    match: Match = "names",
    seed: IntervalSeed = 0,
    out: _Out = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """How far does routing move during training? Each recorded checkpoint against the first and the last.

    Agreement with κ and intervals in each layer, for checkpoints of one model on the same inputs.

    Example: `moeprobe trace drift traces/step-0/clean.parquet traces/step-100/clean.parquet
    traces/step-200/clean.parquet`
    """
    check_two(traces, STEPS)
    check_traces(traces)
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import by_view

    show = partial(by_view, title="Drift of recorded routing")
    _print(partial(api.drift, traces, match=match), "inputs", show, settings, json=json)


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
    match: Match = "names",
    layers: Annotated[
        str | None,
        typer.Option(help="MoE layers that replay the server's routing, comma-separated; default all."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Largest number of requests, from the first one on.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests per batch.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Dtype = "auto",
    seed: IntervalSeed = 0,
    out: _Out = None,
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
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import side_by_side

    analysis = partial(
        api.mismatch, model, tokens=tokens, routing=routing, gates=gates, match=match, limit=limit,
        batch_size=batch_size, device=device, dtype=dtype,
    )  # fmt: skip
    show = partial(side_by_side, title="Log-probabilities of server and model", full=True)
    _print(analysis, "requests", show, settings, json=json)


def indexer(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="FIRST.jsonl",
            help="Responses of a server with indexer_topk; the reference of the comparison.",
        ),
    ],
    second: Annotated[
        Path,
        typer.Argument(metavar="SECOND.jsonl", help="Responses to the same requests, matched by their ids."),
    ],
    model_config: Annotated[
        Path, typer.Option(help="config.json of the model: index_topk, and which layers have an indexer.")
    ],
    start: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Position of each sequence's first row, if the server was asked to leave out leading rows.",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Layers with sparse attention, comma-separated, e.g. layers.3; default all."),
    ] = None,
    seed: IntervalSeed = 0,
    out: _Out = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: AsJson = False,
) -> None:
    """Do two captures of a sparse-attention indexer (DeepSeek-V3.2, V4, GLM-5) select the same keys?

    Overlap of the keys that each query selects, per layer and by position, corrected for chance, with intervals over
    requests. Chance depends on how many keys the query sees.

    Captures with physical slots, shifted or truncated rows, or duplicates are refused.

    Example: `moeprobe trace indexer served.jsonl trainer.jsonl --model-config config.json`
    """
    settings = _settings(layers, seed, out, overwrite=overwrite, svg=svg)
    from moeprobe import api
    from moeprobe.cli.front.show import selected_keys

    analysis = partial(api.indexer, first, second, model_config=model_config, start=start)
    _print(analysis, "requests", selected_keys, settings, json=json)


def check_trace(
    trace: _Trace,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Another trace of the same model and inputs: are layers, positions or experts shifted?"
        ),
    ] = None,
    match: Match = "names",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Look for known capture faults in recorded routing; the exit code is 3 if there is one.

    Finds all-zero, unset and 255-filled captures, prompt rows of zeros, dense layers filled with zeros, missing rows,
    duplicate experts, experts out of range, identical layers, and generated tokens that all carry the same experts;
    with --against also shifted layers or positions, renumbered experts, and agreement no better than chance.

    Example: `moeprobe trace check traces/served.parquet --against traces/again.parquet`
    """
    from dataclasses import asdict

    from moeprobe.cli.front.screen import Bar, console
    from moeprobe.recordings.check_trace import check_trace

    with Bar("rows") as bar:
        checked = check_trace(trace, against=against, match=match, watcher=bar)
    if json:
        content = asdict(checked) | {"path": str(checked.path), "sound": checked.sound}
        content["file"] = content.pop("path")
        print_json(content)
    else:
        screen = console()
        layers = checked.layers
        screen.print(
            f"{checked.inputs:,} inputs, {len(layers)} layers ({layers[0]} to {layers[-1]}).", soft_wrap=True
        )
        for finding in checked.findings:
            screen.print(finding.line, soft_wrap=True)
        if checked.overlap is not None and checked.sound:
            overlap = checked.overlap
            screen.print(
                f"Overlap of the choices in {_inputs_of(overlap)}: {overlap.here:.3f} (chance "
                f"{overlap.chance:.3f}); no shift of layers or positions makes it clearly larger.",
                soft_wrap=True,
            )
        if checked.load_only:
            screen.print(
                "It holds counts of choices and no tokens: they were checked when they were imported.",
                soft_wrap=True,
            )
        elif not checked.findings:
            screen.print("No fault of capture is known that looks like this.", soft_wrap=True)
        if checked.sound and not checked.load_only:
            recordings = " ".join(str(path) for path in (against, trace) if path is not None)
            screen.print(f"Next: moeprobe audit {recordings}", soft_wrap=True)
    if not checked.sound:
        raise typer.Exit(FAILED)


def _inputs_of(overlap: "Overlap") -> str:
    """Return which of the common inputs were looked at."""
    if overlap.inputs == overlap.common:
        return "the common input" if overlap.common == 1 else f"all {overlap.common:,} common inputs"
    return f"the first {overlap.inputs} of {overlap.common:,} common inputs, enough to see a shift"
