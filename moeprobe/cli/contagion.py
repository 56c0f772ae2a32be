"""``moeprobe contagion``."""

from functools import partial
from typing import Annotated

import typer

from moeprobe.cli.options import Checkpoints, Common, Data, Full, probe


@partial(probe, group_images=4)
def contagion(
    checkpoints: Checkpoints,
    data: Data = None,
    share: Annotated[
        float, typer.Option(help="Share of an image's patches that are exchanged, between 0 and 1.")
    ] = 0.25,
    full: Full = False,
    *,
    common: Common,
) -> None:
    """How far does one token's routing depend on the others?

    Share of tokens that are worked on by other experts when (batch) the other images of their group, (token) other
    tokens at the router alone, or (attention) the pixels of other patches are exchanged. The first two are 0 where each
    token is routed by itself and there is room for all.

    Example: `moeprobe contagion checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/contagion`
    """
    from moeprobe import api
    from moeprobe.cli.run import print_plan
    from moeprobe.cli.screen import Bar, print_result
    from moeprobe.cli.short import side_by_side

    options = common.options()
    if common.dry_run:
        plan = api.plan_contagion(checkpoints, data=data, share=share, options=options)
        print_plan(plan, as_json=common.json)
        return
    with Bar() as bar:
        result = api.contagion(checkpoints, data=data, share=share, options=options, watcher=bar)
    title = (
        f"Tokens that change experts: groups of {options.group_images}, {share:.0%} of the patches exchanged"
    )
    print_result(
        result,
        out=options.out,
        as_json=common.json,
        show=lambda found: side_by_side(found, title=title, full=full),
    )
