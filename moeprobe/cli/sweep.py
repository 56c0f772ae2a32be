"""``moeprobe sweep``."""

from typing import Annotated

import typer

from moeprobe.cli.options import (
    Attribute,
    Checkpoints,
    Common,
    Data,
    Full,
    Gates,
    attribution,
    numbers,
    probe,
)


@probe
def sweep(
    checkpoints: Checkpoints,
    view: Annotated[str, typer.Option(help="A view with a severity; see: moeprobe list views.")],
    data: Data = None,
    severities: Annotated[
        str | None, typer.Option(help="Comma-separated severities; default: the view's own steps.")
    ] = None,
    attribute: Attribute = False,
    gates: Gates = "recomputed",
    full: Full = False,
    *,
    common: Common,
) -> None:
    """Match with the clean image, confidence, load, agreement and accuracy along a severity.

    Example: `moeprobe sweep checkpoints/demo-baseline checkpoints/demo-prc --view affine --severities 0,0.25,0.5,1`
    """
    from moeprobe.cli.run import run
    from moeprobe.cli.short import along_severity

    run(
        "sweep",
        checkpoints,
        common,
        show=lambda result: along_severity(result, title=view, full=full),
        data=data,
        attribute=attribution(attribute, gates),
        view=view,
        severities=numbers(severities, "--severities"),
    )
