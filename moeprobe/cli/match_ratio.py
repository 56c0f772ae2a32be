"""``moeprobe match-ratio``."""

from typing import Annotated

import typer

from moeprobe.cli.options import Checkpoints, Common, Data, Full, probe


@probe
def match_ratio(
    checkpoints: Checkpoints,
    data: Data = None,
    view: Annotated[
        str, typer.Option(help="A view that makes pairs; see: moeprobe list views.")
    ] = "random_crop",
    full: Full = False,
    *,
    common: Common,
) -> None:
    """How often do corresponding patches of two random views choose the same experts?

    Top-1, top-2 and order-agnostic match per MoE layer: raw, by chance, and beyond chance (κ); CLS apart.

    Example: `moeprobe match-ratio checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/match`
    """
    from moeprobe.cli.run import run
    from moeprobe.cli.short import side_by_side

    run(
        "match-ratio",
        checkpoints,
        common,
        show=lambda result: side_by_side(
            result, title=f"Match of corresponding patches, view {view}", full=full
        ),
        data=data,
        view=view,
    )
