"""``moeprobe paper``."""

from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.front.early import check_folder
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import Common, CommonOptions, Data, require_folder, with_common_options
from moeprobe.declarations.kinds import OUT_OF_FIGURES
from moeprobe.inputs.modality import IMAGE, sources

if TYPE_CHECKING:
    from moeprobe.studies.paper import PaperPlan, PaperResult

_NAMES = "What to call the two checkpoints of a pair, comma-separated; default: as in the first pair."


@with_common_options(CommonOptions(helps={"out": OUT_OF_FIGURES, "names": _NAMES}))
def paper(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [A2 B2]...",
            help="A reference and a checkpoint to compare with it; then further pairs (other training seeds, another "
            "k), for the tables alone.",
        ),
    ],
    data: Data = None,
    jump_images: Annotated[
        int, typer.Option(help="Number of images on which the output is followed step by step.")
    ] = 100,
    *,
    common: Common,
) -> None:
    """Make the tables and figures of the PRC paper for any two checkpoints and data set.

    Writes tables.md (with the paper's own values for reference), seeds.csv and load.csv, and a folder per probe with
    its figures. After Ctrl-C the same command continues.

    Example: `moeprobe paper checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/my-paper`
    """
    from moeprobe.probes.engine.checks import preflight
    from moeprobe.probes.match_ratio import MatchRatio

    options = common.options()
    if not common.dry_run:
        check_folder(options.out, overwrite=options.overwrite)
    preflight(MatchRatio(), checkpoints, data=data, options=options)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar, console, print_files, print_warnings
    from moeprobe.results.tables import records

    if common.dry_run:
        plan = api.plan_paper(checkpoints, data=data, jump_images=jump_images, options=options)
        _print_plan(plan, pairs=len(checkpoints) // 2, as_json=common.json)
        return
    require_folder(options.out, json=common.json, command="paper")
    with Bar() as bar:
        result = api.paper(
            checkpoints,
            data=data,
            jump_images=jump_images,
            options=options,
            watcher=bar,
        )
    if common.json:
        content = {"table": records(result.table), "load": records(result.load), "sidecar": result.sidecar}
        print_json(content)
        return
    screen = console()
    _show(result)
    for note in result.notes:
        screen.print(note, soft_wrap=True)
    request = result.sidecar.request
    screen.print(
        f"{sources(int(result.table['images'].max()), IMAGE, data=request['data'], split=request['split'])}; "
        "[low, high]: 95 % interval over images, differences paired. The paper's own values are in tables.md, for "
        "reference.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, result.sidecar)
    assert options.out is not None
    print_files(screen, options.out)


def _print_plan(plan: "PaperPlan", *, pairs: int, as_json: bool) -> None:
    import dataclasses

    from moeprobe.cli.front.screen import console

    if as_json:
        print_json(dataclasses.asdict(plan))
        return
    screen = console()
    for name, part in plan.parts.items():
        screen.print(
            f"{name}: {IMAGE.format_count(part.images)} x {part.passes} forward passes, "
            f"about {part.seconds:,.0f} s per pair",
            soft_wrap=True,
        )
    screen.print(
        f"About {plan.seconds:,.0f} s for {pairs} pair{'s' if pairs != 1 else ''} before the statistics and figures, "
        "judging by a few images. Nothing was written.",
        soft_wrap=True,
    )


def _show(result: "PaperResult") -> None:
    """Print the numbers of the paper's tables: first MoE layer first."""
    from rich.table import Table

    from moeprobe.cli.front.screen import console
    from moeprobe.cli.front.tables import fit
    from moeprobe.studies.paper.tables import SIGMA, cell

    screen = console()
    first = result.table[["top_k", "seed"]].drop_duplicates().iloc[0]
    rows = result.table[
        (result.table["top_k"] == first["top_k"])
        & (result.table["seed"].isna() | (result.table["seed"] == first["seed"]))
    ]
    names = list(dict.fromkeys(rows.loc[rows["kind"] == "value", "model"]))
    table = Table(
        title="Tables 2 to 5 of the PRC paper, first pair", title_justify="left", title_style="bold"
    )
    for column in ("layer", "number"):
        table.add_column(column)
    for column in (*names, "difference"):
        table.add_column(column, justify="right")
    numbers = rows[~rows["number"].str.endswith(("foreground", "boundary", "background"))]
    for layer, of_layer in numbers.groupby("layer", sort=False):
        table.add_section()
        for number, line in of_layer.groupby("number", sort=False):
            name = str(number).replace("noise: ", f"noise σ = {SIGMA:g}: ")
            table.add_row(str(layer) or "output", name, *(cell(row) for _, row in line.iterrows()))
    for part in fit(table, keys=2, width=screen.width):
        screen.print(part)
