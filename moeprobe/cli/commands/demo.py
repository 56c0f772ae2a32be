"""``moeprobe demo``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.early import check_configuration
from moeprobe.models.checkpoints.location import CHECKPOINTS
from moeprobe.runtime import distributed
from moeprobe.runtime.device import check_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from moeprobe.models.training.reporting import Report
    from moeprobe.results.folder import Result
    from moeprobe.studies.demo import DemoResult


def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Overrides for both trainings, e.g. epochs=5; data=folder:PATH trains on and probes other images.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    checkpoints: Annotated[Path, typer.Option(help="Where the two checkpoints go.")] = CHECKPOINTS,
    reports: Annotated[Path, typer.Option(help="Where the reports go.")] = Path("reports/demo"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Train V-MoE with and without PRC on handwritten digits, then compare how stable their routing is.

    Takes a few minutes on two CPU cores and replaces earlier results of the demonstration. With data=folder:PATH it
    uses other images.

    Example: `moeprobe demo`
    """
    distributed.check_alone("demo")
    check_device(device)
    from moeprobe.models.config import load

    check_configuration(load("digits-prc", overrides or []))
    from moeprobe.cli.front.options import command_line
    from moeprobe.cli.front.screen import Bar, console
    from moeprobe.cli.front.training_progress import Live
    from moeprobe.studies import demo as demonstration
    from moeprobe.studies.audit.sentences import lines_of, summary

    screen = console()
    with Live("demo") as live, Bar() as bar:

        def announce(name: str, data: str) -> "Callable[[Report], None]":
            screen.print(f"Training {name} on {data} …", soft_wrap=True)
            return live.show_run(name)

        outcome = demonstration.run(
            seed=seed,
            checkpoints=checkpoints,
            reports=reports,
            overrides=tuple(overrides or ()),
            device=device,
            command=command_line(),
            report=announce,
            watcher=bar,
        )
    screen.print(closing_table(outcome))
    for trained in outcome.training.values():
        screen.print(
            f"{trained['name']}: {trained['steps']:,} steps, {trained['images_per_second']:,.0f} images/s in training",
            style="dim",
        )
    screen.print(
        summary(lines_of(outcome.audited.verdicts), outcome.audited.models), style="bold", soft_wrap=True
    )
    request = outcome.evaluation.sidecar.request
    images = int(outcome.evaluation.table["images"].max())
    screen.print(
        f"{images:,} images of {request['data']} {request['split']}, unseen in training; [low, high]: 95 % interval "
        "over images, differences paired.\n"
        f"Reports: {outcome.reports}/{{match-ratio,match-ratio-prc-crops,confidence,noise-sweep,overlay,eval}}/\n"
        f"Verdicts on one page: {outcome.reports}/audit.html\n"
        f"All numbers on one page: {outcome.reports}/report/report.html\n"
        f"Checkpoints: {checkpoints}/demo-baseline/, {checkpoints}/demo-prc/",
        soft_wrap=True,
        markup=False,
    )


def closing_table(outcome: "DemoResult") -> "Table":
    """Return the one table that says what came out: patches of the first MoE layer, whose routing reaches the answer.

    The head reads the class token alone, so what patches choose in the last block does not reach it.
    """
    from rich.table import Table

    from moeprobe.results.numbers import interval
    from moeprobe.studies.demo import BASELINE, NOISE, PRC

    table = Table(title="How stable is the routing? First MoE layer, test images", title_justify="left")
    table.add_column("")
    for name in (BASELINE, PRC, "difference"):
        table.add_column(name, justify="right", no_wrap=True)

    def add(
        text: str, result: "Result", metric: str, *, null: str = "", severity: float | None = None
    ) -> None:
        cells = []
        for rows in (result.table, result.comparison):
            assert rows is not None
            selected = rows[
                (rows["metric"] == metric) & (rows["null"] == null) & (rows["tokens"] != "prefix")
            ]
            selected = selected[selected["layer"] == selected["layer"].iloc[0]]
            if severity is not None:
                selected = selected[selected["severity"] == severity]
            cells += [interval(row, signed=rows is result.comparison) for _, row in selected.iterrows()]
        table.add_row(text, *cells)

    add("same set of two, two random crops", outcome.match, "top2_set_match")
    add("  by chance", outcome.match, "top2_set_match_chance", null="pooled")
    add("  beyond chance: κ", outcome.match, "top2_set_match_kappa", null="pooled")
    add("  beyond chance within the image: κ", outcome.match, "top2_set_match_kappa", null="image")
    add(
        "  κ, the released program's harder crops",
        outcome.match_prc_crops,
        "top2_set_match_kappa",
        null="pooled",
    )
    add("same first expert, two random crops", outcome.match, "top1_match")
    add("  beyond chance: κ₁", outcome.match, "top1_match_kappa", null="pooled")
    add(f"same set of two, noise {NOISE}", outcome.noise, "top2_set_match", severity=NOISE)
    for text, null in (
        ("chance", "pooled"),
        ("the position", "position"),
        ("chance within the image", "image"),
    ):
        add(f"  beyond {text}: κ", outcome.noise, "top2_set_match_kappa", null=null, severity=NOISE)
    add("highest gate", outcome.confidence, "gate_highest")
    add("load entropy (1 = even)", outcome.confidence, "load_entropy")
    add("dead experts (share < 1 / 10E)", outcome.confidence, "dead_experts")
    add("  of the first choices", outcome.confidence, "dead_experts_first")
    add("accuracy", outcome.evaluation, "accuracy")
    return table
