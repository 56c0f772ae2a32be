"""The declaration of ``confidence``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprobe.declarations import AuditEntry, Headline, Probe, Property

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Confidence(Probe["Result"]):
    """How confident are the routers on clean images?

    Mean highest gate, second gate, sum of the rest, the margin between the first two, and the entropy of the gates; how
    near a token's set of experts is to another set, and what share of its gates the set has; and how evenly tokens
    choose experts.

    Example: `moeprobe confidence checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/confidence`
    """

    name = "confidence"
    title = "Confidence of the routers"
    drawn_by = "moeprobe.probes.confidence.figure:draw"
    analyses = (
        "confidence",
        "selection",
        "load",
        "unserved",
        "dropped",
        "buffer_fill",
        "experts_per_token",
    )
    headlines = (
        Headline("gate_highest"),
        Headline("load_entropy"),
        Headline("dead_experts"),
        Headline("dead_experts_first"),
    )
    audit = AuditEntry(
        order=3,
        properties=(
            Property(
                "dead",
                "Dead experts",
                (Headline("dead_experts"),),
                "dead",
                advice={"some": "Remove the dead experts, or train with a stronger balancing loss."},
                command="moeprobe routes {models}",
            ),
            Property(
                "load",
                "Load",
                (Headline("load_entropy"),),
                "load",
                advice={
                    "uneven": "Train with a stronger balancing loss, or give the experts more capacity.",
                    "slightly uneven": "Check that no token is dropped at the capacity of your server.",
                },
                command="moeprobe confidence {models} --capacity trained --full",
            ),
            Property("confidence", "Confidence", (Headline("gate_highest"),), "confidence"),
        ),
        figures=("confidence",),
    )

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the printed table."""
        return "Router confidence, clean images"
