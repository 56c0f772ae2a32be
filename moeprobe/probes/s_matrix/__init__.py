"""The declaration of ``s-matrix``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, Headline, Probe, Views

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result


@dataclass(frozen=True, kw_only=True)
class SMatrix(Probe["Result"]):
    """Which experts do the two views of a patch weight together? The matrix S that PRC pulls towards the identity.

    S (experts x experts) over all corresponding patches of the data set, as a heat map; the means of its diagonal and
    of the rest, and both terms of the PRC loss (unweighted). The matrix itself is in table.csv. A second figure shows
    how one pair of patches enters S: two views, the gates of the patch in both, their product.

    Example: `moeprobe s-matrix checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/s-matrix`
    """

    name = "s-matrix"
    title = "Correlation of the experts of corresponding patches"
    work = "moeprobe.probes.s_matrix.measure:SMatrixMeasurement"
    analyses = ("s_matrix", "load")
    headlines = (Headline("s_diagonal"),)
    views = Views.PAIRS
    colorless = ("s-matrix-steps",)

    view: Annotated[
        str,
        Arg(
            "A view that makes pairs; see: moeprobe list views. With parameters: NAME,key=value.",
        ),
    ] = "random_crop"

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return what S is, with the view."""
        return f"Correlation of paired gates, view {self.view}"

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the heat maps of S, and its means by layer."""
        from moeprobe.probes.s_matrix.figure import draw

        return draw(result.table, colors=result.sidecar.colors)
