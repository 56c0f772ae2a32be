"""``moeprobe discontinuity``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.options import Checkpoints, Common, Data, File, Full, names, probe

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


@probe
def discontinuity(
    checkpoints: Checkpoints,
    data: Data = None,
    view: Annotated[
        str, typer.Option(help="A view with a severity; see: moeprobe list views.")
    ] = "gaussian_noise",
    steps: Annotated[int, typer.Option(help="Equal steps along the severity, at least 200.")] = 200,
    until: Annotated[
        float | None, typer.Option(help="Largest severity; default: the last of the view's own steps.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Names of images of the data set, comma-separated; default: all.")
    ] = None,
    file: File = None,
    count: Annotated[int, typer.Option(help="How many of the images are drawn.")] = 3,
    full: Full = False,
    *,
    common: Common,
) -> None:
    """How far does the output jump when tokens switch experts as a perturbation grows?

    Every switch is located by bisection, and its jump measured at one input by replaying the routing before it.

    Example: `moeprobe discontinuity checkpoints/demo-baseline checkpoints/demo-prc --limit 50 --out reports/jumps`
    """
    from moeprobe import api
    from moeprobe.cli.run import print_plan
    from moeprobe.cli.screen import Bar, print_result
    from moeprobe.cli.short import side_by_side

    options = common.options()
    asked: dict[str, Any] = {
        "data": data, "view": view, "steps": steps, "until": until, "images": names(images), "files": file or [],
    }  # fmt: skip
    if common.dry_run:
        print_plan(
            api.plan_discontinuity(checkpoints, options=options, **asked), as_json=common.json, least=True
        )
        return
    with Bar() as bar:
        found = api.discontinuity(checkpoints, count=count, options=options, watcher=bar, **asked)
    print_result(
        found.result,
        out=options.out,
        as_json=common.json,
        show=lambda result: side_by_side(result, title=_title(result), full=full),
    )


def _title(result: "Result") -> str:
    request = result.sidecar["request"]
    path = (
        f"{request['view']['name']} up to {request['severities'][-1]:g} ({result.sidecar['severity_unit']})"
    )
    return f"Switches and jumps along {path}, per image"
