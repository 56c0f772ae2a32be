"""The declaration of ``align``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, AuditEntry, Headline, Layout, Panel, Probe, Property
from moeprobe.errors import UserError, option
from moeprobe.runtime.arguments import check_two

if TYPE_CHECKING:
    from moeprobe.declarations.options import Options
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


# How messages name the recordings, of which at least two are needed.
TO_ALIGN = "traces to align"


@dataclass(frozen=True, kw_only=True)
class Align(Probe["Result"]):
    """Do two trainings learn the same experts? Experts are aligned by the tokens that they have in common.

    The one-to-one alignment is fitted to one half of the images and judged on the other, both ways, since the best of
    many alignments agrees by chance. Three or more trainings that differ in their seed also give the share of routing
    that data determine.

    Example: `moeprobe align checkpoints/demo-baseline checkpoints/demo-prc --limit 200 --out reports/align`
    """

    name = "align"
    title = "Experts of several trainings, aligned"
    work = "moeprobe.probes.align.measure:Alignment"
    drawn_by = "moeprobe.probes.align.figure:draw"
    concluded_by = "moeprobe.probes.align.sentences:sentences"
    analyses = ("expert_overlap",)
    headlines = ()
    layout = Layout.ALIGNED
    panel = Panel.COMPARE
    joinable = False
    leaves_out = False
    compares = False
    splits = False
    resumes = False
    audit = AuditEntry(
        order=13,
        properties=(
            Property(
                "align",
                "Same experts as the first model",
                (
                    Headline("expert_overlap_kappa", "pooled"),
                    Headline("fitted", noun="κ in sample"),
                    Headline("fitted_unrelated", noun="κ of unrelated inputs"),
                ),
                "aligned",
                compared=False,
                of_pair=True,
            ),
        ),
        images={"permutations": 100},
        texts={"permutations": 100},
        most_images=200,
        figures=("align",),
    )

    permutations: Annotated[
        int,
        Arg(
            "Random orders of the images that show how well unrelated routing can be aligned.",
            low=40,
            high=100_000,
        ),
    ] = 200

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where the null by class is wanted."""
        if options.class_null:
            raise UserError(f"Experts are aligned over all classes; leave {option('class_null')} out.")

    def check_models(self, models: Sequence[Any]) -> None:
        """Raise ``UserError`` where there is nothing to align with."""
        check_two(models, "models to align")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        return "Aligned routing of two trainings, on images that the alignment was not fitted to"
