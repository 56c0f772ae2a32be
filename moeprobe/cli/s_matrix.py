"""``moeprobe s-matrix``."""

from typing import Annotated

import typer

from moeprobe.cli.options import Checkpoints, Common, Data, Full, probe


@probe
def s_matrix(
    checkpoints: Checkpoints,
    data: Data = None,
    view: Annotated[
        str, typer.Option(help="A view that makes pairs; see: moeprobe list views.")
    ] = "random_crop",
    full: Full = False,
    *,
    common: Common,
) -> None:
    """Which experts do the two views of a patch weigh together? The matrix S that PRC makes the identity.

    S (experts x experts) over all corresponding patches of the data set, as a heat map; the means of its diagonal and
    of the rest, and both terms of the PRC loss (unweighted). The matrix itself stands in table.csv.

    Example: `moeprobe s-matrix checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/s-matrix`
    """
    from moeprobe.cli.run import run
    from moeprobe.cli.short import side_by_side

    run(
        "s-matrix",
        checkpoints,
        common,
        show=lambda result: side_by_side(
            result, title=f"Correlation of paired gates, view {view}", full=full
        ),
        data=data,
        view=view,
    )
