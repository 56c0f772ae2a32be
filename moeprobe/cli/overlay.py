"""``moeprobe overlay``."""

from typing import Annotated

import typer

from moeprobe.cli._options import Checkpoints, Common, Data, probe


@probe
def overlay(
    checkpoints: Checkpoints,
    data: Data = "digits",
    images: Annotated[
        str | None, typer.Option(help="Names of images of the data set, comma-separated.")
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option(help="An image file of your own; may be repeated.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many images, if none is named.")] = 4,
    view: Annotated[str, typer.Option(help="A view with a severity.")] = "gaussian_noise",
    severity: Annotated[float, typer.Option(help="Its severity.")] = 0.2,
    *,
    common: Common,
) -> None:
    """Draw the expert of each patch into clean and perturbed images, changed ones red.

    Example: `moeprobe overlay checkpoints/demo-baseline checkpoints/demo-prc --severity 0.2 --out reports/overlay`
    """
    import json
    import mimetypes

    from rich.table import Table

    from moeprobe import api
    from moeprobe.cli._options import names
    from moeprobe.cli._screen import console, print_files, records
    from moeprobe.errors import UserError

    options = common.options()
    if options.out is None and not common.json:
        raise typer.BadParameter(
            "name a folder for the figures, e.g. --out reports/overlay", param_hint="--out"
        )
    for name in checkpoints:
        if (mimetypes.guess_type(name)[0] or "").startswith("image/"):
            raise UserError(f"{name} is an image, not a checkpoint; give it as: --file {name}.")
    result = api.overlay(
        checkpoints,
        data=data,
        images=names(images),
        files=file or [],
        count=count,
        view=view,
        severity=severity,
        options=options,
    )
    if common.json:
        print(json.dumps({"patches": records(result.table), "files": [str(path) for path in result.files]}))
        return
    table = Table(title=f"Changed first choices, {view} at {severity:g}", title_justify="left")
    for column in ("layer", "checkpoint", "image", "changed", "of"):
        table.add_column(column)
    for item in result.overlays:
        changed, compared = str(int(item.changed.sum())), str(int(item.compared.sum()))
        table.add_row(item.layer, item.checkpoint, item.image_id, changed, compared)
    screen = console()
    screen.print(table)
    screen.print("Single images, to be looked at; for numbers with intervals: moeprobe sweep.", style="dim")
    assert options.out is not None
    print_files(screen, options.out)
