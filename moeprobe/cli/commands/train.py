"""``moeprobe train``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.early import check_configuration
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import Download, Svg
from moeprobe.errors import UserError
from moeprobe.runtime import distributed
from moeprobe.runtime.device import check_device

if TYPE_CHECKING:
    from moeprobe.models.config import TrainConfig
    from moeprobe.models.pipeline import Pipeline


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, e.g. model.top_k=1 seed=3."),
    ] = None,
    config: Annotated[
        str,
        typer.Option(
            help="Name of a configuration (moeprobe list configs) or a pipeline (moeprobe list pipelines), or a YAML "
            "file."
        ),
    ] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Start a run, continue it, or keep it if it is finished, as without --overwrite anyway.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in the run folder.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Run folder; default checkpoints/NAME.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    svg: Svg = False,
    download: Download = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the configuration with all its keys, and train nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a V-MoE, with or without Pairwise Router Consistency; or the stages of a pipeline, one after the other.

    After Ctrl-C, SIGTERM or SIGHUP the same command continues the run. A finished run is kept, and its results are
    printed. The key of a single stage is pipeline.STAGE.KEY=VALUE.

    Example: `moeprobe train --config digits-prc seed=1 name=digits-prc-1`
    """
    if not config:
        raise typer.BadParameter("name a configuration, e.g. --config digits-prc", param_hint="--config")
    from moeprobe.models import pipeline
    from moeprobe.models.config import dump, load

    check_device(device)
    options: dict[str, Any] = {"device": device, "resume": resume, "overwrite": overwrite, "svg": svg}
    if pipeline.is_pipeline(config):
        if distributed.is_launched():
            raise UserError(f"{config} has several stages; give torchrun one training at a time.")
        stages = pipeline.load(config, overrides or [], folder=folder)
        for stage in stages.stages.values():
            check_configuration(stage)
        if show:
            print("---\n".join(map(dump, stages.stages.values())), end="")
            return
        _train_pipeline(stages, as_json=json, **options)
        return
    resolved = load(config, overrides or [])
    check_configuration(resolved)
    if show:
        print(dump(resolved), end="")
        return
    if distributed.is_launched():
        _train_together(resolved, folder, as_json=json, **options)
        return
    from moeprobe import api
    from moeprobe.cli.front.training_progress import Live

    with Live(resolved.name) as live:
        summary = api.train(resolved, folder=folder, report=live.show, **options)
    print_summary(summary, as_json=json)


def _train_together(config: "TrainConfig", folder: Path | None, *, as_json: bool, **options: Any) -> None:
    """Train as one of several processes, of which the first prints."""
    import contextlib

    from moeprobe.cli.front.training_progress import Live
    from moeprobe.studies.train import train_together

    if options.pop("resume") and options["overwrite"]:
        raise UserError("--resume continues an earlier run and --overwrite replaces it; omit one of them.")
    first = distributed.rank() == 0
    with distributed.together() as ranks, Live(config.name) if first else contextlib.nullcontext() as live:
        report = (lambda _: None) if live is None else live.show
        options["device"] = distributed.own_device(options["device"])
        summary = train_together(config, folder=folder, report=report, ranks=ranks, **options)
    if first:
        print_summary(summary, as_json=as_json)


def _train_pipeline(stages: "Pipeline", *, as_json: bool, **options: Any) -> None:
    """Train the stages of a pipeline and print what came of each."""
    from moeprobe import api
    from moeprobe.cli.front.training_progress import Live

    with Live(stages.name) as live:
        summary = api.train_pipeline(stages, begin=live.show_run, **options)
    if as_json:
        print_json(summary)
        return
    for stage_summary in summary["stages"].values():
        print_summary(stage_summary)


def print_summary(summary: dict[str, Any], *, as_json: bool = False) -> None:
    """Print the results of a run and its folder."""
    from moeprobe.cli.front.screen import console
    from moeprobe.cli.front.training_progress import validation

    if as_json:
        print_json(summary)
        return
    screen = console()
    best = next(f" (best {value:.3f})" for key, value in summary.items() if key.startswith("best_val_"))
    # Runs from before it was written do not say.
    rests = f" on {summary['validated_on']}" if "validated_on" in summary else ""
    screen.print(
        f"{summary['name']}: {summary['steps']:,} steps, {validation(summary, best)}{rests}, "
        f"{summary['images_per_second']:,.0f} images/s",
        soft_wrap=True,
    )
    if summary["kept"]:
        screen.print(
            f"Finished already: nothing was trained, and {summary['folder']}/ is as it was.", soft_wrap=True
        )
        return
    if "split" in summary:
        screen.print(f"No folders define the splits of the data: {summary['split']}.", soft_wrap=True)
    if "upcycled" in summary:
        start = summary["upcycled"]
        screen.print(
            f"Upcycled from {start['name']} ({start['source']}): experts are copies of its MLPs; routers and head "
            "(with the data's classes) began fresh.",
            soft_wrap=True,
        )
    screen.print(
        f"Written to {summary['folder']}/: last.safetensors, best.safetensors, metrics.csv, training.png"
    )
