"""The declaration of ``experts``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, AuditEntry, Headline, Panel, Probe, Property, Rule

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Experts(Probe["Result"]):
    """Which experts are dispensable, and which are redundant?

    In one layer at a time, all tokens get other sets: without one expert, with one expert on every token, drawn at
    random, or relabeled. The rise of the loss is measured for each. With many experts, some of each layer are measured
    one by one, and one drawn for each input stands for the mean over all. For moeprobe's own models, the outputs of all
    experts on the same patches are compared as well. `--loss 0.01` lists the experts that may go, each alone, at a
    loss below 0.01.

    Example: `moeprobe experts checkpoints/demo-baseline checkpoints/demo-prc --limit 200 --out reports/experts`
    """

    name = "experts"
    title = "Experts banned, forced and compared"
    work = "moeprobe.probes.experts.measure:ExpertsMeasurement"
    drawn_by = "moeprobe.probes.experts.figure:draw"
    concluded_by = "moeprobe.probes.experts.redundancy:sentences"
    analyses = ("experts", "expert_outputs", "load", "output")
    optional = ("output",)
    headlines = (
        Headline("experts_price_random"),
        Headline("experts_price_permuted"),
        Headline("experts_price_without"),
        Headline("expert_cka"),
        Headline("experts_dispensable", severity="at a loss below {severity:g} nats"),
    )
    panel = Panel.STRESS
    joinable = False
    leaves_out = False
    audit = AuditEntry(
        order=12,
        properties=(
            Property(
                "experts",
                "Choice of experts matters",
                (
                    Headline("experts_price_random"),
                    Headline("experts_price_permuted", noun="with experts relabeled"),
                ),
                "choice",
                rule=Rule.FIRST,
                advice={"no": "Look which experts that layer can do without, on more images."},
                # A loss that depends more on the choice is neither better nor worse.
                compared=False,
                trials="trials",
            ),
        ),
        most_images=60,
        figures=("experts", "expert-distances"),
        statistics=2,
    )

    loss: Annotated[
        float | None,
        Arg(
            "List the experts whose ban alone raises the loss by less than this, in nats; default: no list.",
            above=0,
            what="a number of nats",
        ),
    ] = None
    experts_per_layer: Annotated[
        int | None,
        Arg(
            "Experts of each layer that are banned and forced one by one, drawn by their load; default all, or as many "
            "as 100 passes per input allow, and at least one.",
            low=1,
        ),
    ] = None
    draws: Annotated[
        int | None,
        Arg(
            "Random choices, and permutations, of experts that are drawn for each input; default 4, or 1 where experts "
            "are drawn, too.",
            low=1,
            high=1000,
        ),
    ] = None

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        return "All tokens of one layer with other sets, against the model as it is"
