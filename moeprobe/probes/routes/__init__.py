"""The declaration of ``routes``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, AuditEntry, Headline, Probe, Property, Rule
from moeprobe.errors import UserError, option
from moeprobe.results.files_for_reports import CLASSES

if TYPE_CHECKING:
    from moeprobe.declarations.options import Options
    from moeprobe.probes.routes.measure import RoutesResult  # noqa: F401  # named in the class


# The table of experts by the kind of token, where words stand beside a picture.
MODALITIES = "modalities.csv"


@dataclass(frozen=True, kw_only=True)
class Routes(Probe["RoutesResult"]):
    """What do the experts specialize in: classes, positions, colors?

    Tokens per expert, layer, class and position; what experts say about each, beyond what permuted images give; how
    evenly the experts are loaded, and how differently from image to image; which experts share tokens. With a
    vision-language model: which experts see pictures? With --data checkerboard: do patches keep their expert by color
    or by place?

    Example: `moeprobe routes checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/routes`
    """

    name = "routes"
    title = "What the experts specialize in"
    writes = (CLASSES, "places.csv", "colors.csv", "key_routes.csv", "class_distances.csv", MODALITIES)
    work = "moeprobe.probes.routes.measure:RoutesMeasurement"
    concluded_by = "moeprobe.probes.routes.tables:sentences"
    analyses = (
        "information",
        "color_bias",
        "variation",
        "load",
        "balance",
        "coactivation",
        "modality",
    )
    headlines = (
        # Only vision-language models have it, and ask it first.
        Headline("modality_divergence"),
        Headline("class_information"),
        Headline("position_information"),
        Headline("color_information"),
        Headline("same_color"),
        Headline("same_color_kappa", "pooled", noun="κ of patches of one color"),
        Headline("same_place"),
        Headline("same_place_kappa", "pooled", noun="κ of places with the colors exchanged"),
        Headline("load_entropy"),
        Headline("dead_experts"),
        Headline("dead_experts_first"),
    )
    audit = AuditEntry(
        order=8,
        properties=(
            Property(
                "routes",
                "Experts specialize by",
                (
                    Headline("class_information", noun="class"),
                    Headline("position_information", noun="position"),
                    Headline("color_information", noun="color"),
                ),
                "information",
                rule=Rule.HIGHEST,
                command="moeprobe routes {models}",
                compared=False,
            ),
        ),
        images={"count": 1},
        figures=("sheet",),
    )

    images: Annotated[
        Sequence[str],
        Arg("Names of images to draw a sheet of, comma-separated.", in_request=False, of_figures=True),
    ] = ()
    count: Annotated[
        int,
        Arg(
            "Number of images with a sheet, if none is named.",
            in_request=False,
            of_figures=True,
            low=0,
            what="a number of images",
        ),
    ] = 2

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where units are to be counted: key routes and their permutations are of inputs."""
        if options.unit is not None:
            raise UserError(f"routes counts and permutes inputs; leave {option('unit')} out.")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the printed table."""
        return "Specialization of the experts"
