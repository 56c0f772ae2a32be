"""``moeprobe correspond``."""

from typing import Annotated

import typer

from moeprobe.cli.front.early import check_checkpoints, check_data, check_folder, check_view
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import (
    Data,
    File,
    Images,
    OutOfFigures,
    Overwrite,
    Svg,
    command_line,
    names,
    require_folder,
)


def correspond(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A run folder or .safetensors file whose image and patch size are used; its experts color the lines.",
        ),
    ] = None,
    data: Data = None,
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "test",
    images: Images = None,
    file: File = None,
    count: Annotated[int, typer.Option(help="How many images, if none is named.")] = 4,
    view: Annotated[
        str, typer.Option(help="A view that makes pairs, or one with a severity; see: moeprobe list views.")
    ] = "random_crop",
    severity: Annotated[
        float | None, typer.Option(help="Compare the clean image with the view at this severity.")
    ] = None,
    lines: Annotated[
        int, typer.Option(help="Largest number of lines per image, spread evenly; the table holds all pairs.")
    ] = 16,
    image_size: Annotated[
        int | None,
        typer.Option(help="Side of the model's input in pixels, without a checkpoint; 224 if not given."),
    ] = None,
    patch_size: Annotated[
        int | None, typer.Option(help="Side of a patch in pixels, without a checkpoint; 32 if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of images and of the views.")] = 0,
    out: OutOfFigures = None,
    overwrite: Overwrite = False,
    svg: Svg = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Draw lines between the patches of two views that show the same part of the image.

    Probes draw the same views with the same seed. Without a checkpoint the grid follows V-MoE-S/32,
    7 x 7 patches of 32 pixels.

    Example: `moeprobe correspond checkpoints/demo-prc --view random_crop --out reports/correspond`
    """
    from rich.table import Table

    check_checkpoints([] if checkpoint is None else [checkpoint])
    check_data(data, split=split)
    check_view(view)
    check_folder(out, overwrite=overwrite)
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar, console, print_files, records

    require_folder(out, json=json, command="correspond")
    with Bar() as bar:
        result = api.correspond(
            checkpoint,
            data=data,
            images=names(images),
            files=file or [],
            count=count,
            view=view,
            severity=severity,
            lines=lines,
            image_size=image_size,
            patch_size=patch_size,
            split=split,
            seed=seed,
            out=out,
            overwrite=overwrite,
            svg=svg,
            command=command_line(),
            watcher=bar,
        )
    if json:
        content = {"pairs": records(result.table), "files": [str(path) for path in result.files]}
        print_json(content)
        return
    strength = "" if severity is None else f" at {severity:g}"
    table = Table(title=f"Corresponding patches, {view}{strength}", title_justify="left")
    for column in ("image", "view 1", "with a partner", "of", "met in view 2"):
        table.add_column(column)
    for item in result.pairs:
        first, second = (int(matched.sum()) for matched in item.matched)
        table.add_row(item.image_id, item.names[0], str(first), str(item.grid.num_patches), str(second))
    screen = console()
    experts_of = result.pairs[0].experts_of
    colors = f" Colors say whether both have the same expert in {experts_of}." if experts_of else ""
    screen.print(
        f"Images of {result.data}. View 1 is the one that shows less of the image, else the clean or first one. Each "
        f"of its patches has a partner if its center is inside view 2.{colors}",
        style="dim",
        soft_wrap=True,
    )
    assert out is not None
    print_files(screen, out)
