"""The declaration of ``match-ratio``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import AGREEMENT, Agreement, Arg, AuditEntry, Probe, Property, Views

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class MatchRatio(Probe["Result"]):
    """How often do corresponding patches of two random views choose the same experts?

    Top-1, top-2 and order-agnostic match per MoE layer: raw, by chance, and beyond chance (κ); CLS separately.

    Example: `moeprobe match-ratio checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/match`
    """

    name = "match-ratio"
    title = "Match of corresponding patches"
    drawn_by = "moeprobe.probes.match_ratio.figure:draw"
    analyses = (*AGREEMENT, "load", "unserved", "dropped", "buffer_fill")
    headlines = (Agreement(),)
    audit = AuditEntry(
        order=1,
        properties=(
            Property(
                "crops",
                "Routing under crops",
                (Agreement(),),
                "agreement",
                text_title="Routing under dropped tokens",
                advice={
                    "unstable": "Train with Pairwise Router Consistency (objective prc), or use fewer experts.",
                    "moderately stable": "Compare it with the reference values, and with another training seed.",
                    "collapsed": "Mend the collapse first: a router with one choice is stable for no good reason.",
                },
                command="moeprobe match-ratio {models} --view prc_crops",
                text_command="moeprobe match-ratio {models} --view token_dropout --full",
            ),
            Property(
                "collapse",
                "Collapsed",
                (Agreement(),),
                "collapse",
                companion="by chance",
                advice={
                    "collapsed": "Train with a stronger balancing loss: all tokens make the same choice.",
                    "nearly": "Look at the load of each expert, and train with a stronger balancing loss.",
                },
                command="moeprobe confidence {models} --full",
                compared=False,
            ),
        ),
        texts={"view": "token_dropout"},
        figures=("match-ratio",),
    )
    views = Views.PAIRS

    view: Annotated[
        str,
        Arg(
            "A view that makes pairs; see: moeprobe list views. With parameters: NAME,key=value.",
        ),
    ] = "random_crop"

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title with the view."""
        return f"{self.title}, view {self.view}"
