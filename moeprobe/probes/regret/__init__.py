"""The declaration of ``regret``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, AuditEntry, Headline, Panel, Probe, Property

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class

# Weights of experts that come in: as the router weighs them, or those of the experts that they replace.
ROUTER, EQUAL = "router", "equal"


@dataclass(frozen=True, kw_only=True)
class Regret(Probe["Result"]):
    """Is the router right, or would other experts have been better?

    One token of one layer gets other experts in place of the router's choice, one choice after the other: each expert
    (k = 1), or the set with one expert exchanged (k > 1). How many of them are worse, how far does the router's choice
    lead, what would the best have gained, and do gates say so? A random choice stands beside it.

    Example: `moeprobe regret checkpoints/demo-baseline checkpoints/demo-prc --limit 100 --out reports/regret`
    """

    name = "regret"
    title = "The router's choice beside others"
    work = "moeprobe.probes.regret.measure:RegretMeasurement"
    drawn_by = "moeprobe.probes.regret.figure:draw"
    concluded_by = "moeprobe.probes.regret.sentences:sentences"
    analyses = ("choices",)
    headlines = (
        Headline("choice_rank"),
        Headline("choice_right"),
        Headline("choice_lead"),
        Headline("choice_regret"),
        Headline("choice_correlation"),
    )
    panel = Panel.STRESS
    joinable = False
    leaves_out = False
    audit = AuditEntry(
        order=14,
        properties=(
            Property(
                "regret",
                "Choices better than random",
                (
                    Headline("choice_rank_kappa", "option"),
                    Headline("choice_right", noun="share of tokens without a better choice"),
                ),
                "right",
                advice={"no": "Compare experts at equal weights, too (--weights equal), on more inputs."},
            ),
        ),
        # Many inputs with few choices each, since a token's choices are no sample.
        images={"patches": 2, "tried": 4},
        texts={"patches": 2, "tried": 4},
        most_images=100,
        figures=("regret",),
        statistics=2,
    )

    tried: Annotated[
        int,
        Arg(
            "Other choices that are tried for a token; of more, so many are drawn at random for each token.",
            low=1,
            high=1000,
        ),
    ] = 8
    patches: Annotated[
        int,
        Arg("Patches of an image, or tokens of a text, that are sampled in each layer.", low=1, high=10_000),
    ] = 1
    delta: Annotated[
        float,
        Arg(
            "Nats by which another choice must be better to count as better.", low=0, what="a number of nats"
        ),
    ] = 0.01
    weights: Annotated[
        str,
        Arg(
            "Weights in a tried choice: router = as the router weighs experts; equal = one that comes in gets the "
            "weight of the one that leaves.",
            choices={ROUTER: ROUTER, EQUAL: EQUAL},
            words=(ROUTER, EQUAL),
        ),
    ] = ROUTER

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        manner = "as the router does" if self.weights == ROUTER else "equally"
        return f"The router's choice beside up to {self.tried} others of a token, weighed {manner}"
