"""``moeprobe noise-sweep``."""

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
def noise_sweep(
    checkpoints: Checkpoints,
    data: Data = None,
    sigmas: Annotated[
        str | None,
        typer.Option(help="Comma-separated standard deviations, in units of the [0, 1] pixel range."),
    ] = None,
    attribute: Attribute = False,
    gates: Gates = "recomputed",
    full: Full = False,
    *,
    common: Common,
) -> None:
    """The gaussian_noise sweep: does noise change which experts the patches choose, and the answer?

    Example: `moeprobe noise-sweep checkpoints/demo-baseline checkpoints/demo-prc --sigmas 0,0.1,0.2 --attribute`
    """
    from moeprobe.cli.run import run
    from moeprobe.cli.short import along_severity

    run(
        "sweep",
        checkpoints,
        common,
        show=lambda result: along_severity(result, title="gaussian_noise", full=full),
        data=data,
        attribute=attribution(attribute, gates),
        view="gaussian_noise",
        severities=numbers(sigmas, "--sigmas"),
    )
