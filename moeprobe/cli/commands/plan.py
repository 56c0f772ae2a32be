"""``moeprobe plan``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import AsJson, Overwrite
from moeprobe.runtime import distributed

if TYPE_CHECKING:
    from moeprobe.studies.plan import ImagesPlan


def plan(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A finished run of two checkpoints, a comparison, or runs (and pairs A=B) as compare takes them; of "
            "one checkpoint, its values stand for both.",
        ),
    ],
    difference: Annotated[
        float, typer.Option(help="The difference to be shown, in the metric's own unit, e.g. 0.01.")
    ],
    power: Annotated[float, typer.Option(help="How often so many images are to show it.")] = 0.8,
    metric: Annotated[
        str | None, typer.Option(help="Plan for this metric alone; default: all shares, κ and gates.")
    ] = None,
    trainings: Annotated[
        bool,
        typer.Option(
            "--trainings",
            help="Say how many pairs of trainings it takes, too; needs three or more pairs.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for plan.csv; default: print only.")] = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """How many images show such a difference? A finished run is the pilot; nothing is measured.

    In simulations, 0.725 to 0.850 of pilots plan enough images. With --trainings it says whether more trainings or more
    images help.

    Example: `moeprobe plan reports/demo/noise-sweep --difference 0.01`
    """
    distributed.check_alone("plan")
    from moeprobe.studies.hand_pairs import read_pairs
    from moeprobe.studies.plan import plan_images

    sources, pairs = read_pairs(runs)
    planned = plan_images(
        sources,
        difference=difference,
        power=power,
        metric=metric,
        trainings=trainings,
        pairs=pairs,
        out=out,
        overwrite=overwrite,
    )
    _show(planned, as_json=json)


def _show(planned: "ImagesPlan", *, as_json: bool) -> None:
    from moeprobe.cli.front.screen import console
    from moeprobe.cli.front.tables import on_screen
    from moeprobe.results.tables import records
    from moeprobe.studies.plan.layout import images_table, trainings_table

    if as_json:
        content = {
            "sentences": list(planned.sentences),
            "table": records(planned.table),
            "trainings": records(planned.trainings),
            "files": [str(path) for path in planned.files],
        }
        print_json(content)
        return
    screen = console()
    for sentence in planned.sentences:
        screen.print(sentence, soft_wrap=True)
    layouts = [images_table(planned)] + ([trainings_table(planned)] if len(planned.trainings) else [])
    for layout in layouts:
        for part in on_screen(layout, stacked=False):
            screen.print(part)
        if layout.note:
            screen.print(layout.note, style="dim", soft_wrap=True)
    if planned.files:
        screen.print(f"Written: {', '.join(str(path) for path in planned.files)}", soft_wrap=True)
