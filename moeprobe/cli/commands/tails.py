"""``moeprobe tails``."""

from pathlib import Path
from typing import Annotated

import typer

from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import AsJson, Overwrite
from moeprobe.runtime import distributed


def tails(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of finished runs that compare two routings."),
    ],
    above: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Also the share of inputs of which more than this share of tokens change."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="What was sampled, as for compare: folder, or a CSV with the columns image_id and unit."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tails.csv and tails.png; default: print only.")
    ] = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """How much does routing change for the inputs that change most?

    Quantiles (50, 90, 99 %) over inputs of the share of tokens that change experts, from the sums of finished runs.
    Intervals are from ordered values; too few inputs have none.

    Example: `moeprobe tails reports/my-noise --above 0.5`
    """
    distributed.check_alone("tails")
    from moeprobe.cli.front.screen import console
    from moeprobe.cli.front.tables import on_screen
    from moeprobe.results.layouts.tails import tails_table
    from moeprobe.results.tables import records
    from moeprobe.studies.tails import tails as compute

    result = compute(runs, above=above, unit=unit, out=out, overwrite=overwrite)
    files = [str(path) for path in result.files]
    if json:
        print_json({"table": records(result.table), "sentences": result.sentences(), "files": files})
        return
    screen, layout = console(), tails_table(result.table, result.modality)
    for part in on_screen(layout, stacked=False):
        screen.print(part)
    for sentence in result.sentences():
        screen.print(sentence, soft_wrap=True)
    screen.print(layout.note, style="dim", soft_wrap=True)
    if files:
        screen.print(f"Written: {', '.join(files)}", soft_wrap=True)
