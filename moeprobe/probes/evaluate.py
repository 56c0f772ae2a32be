"""The declaration of ``eval``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprobe.declarations import AuditEntry, Headline, Layout, Probe, Property

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Evaluate(Probe["Result"]):
    """Accuracy, top-5 accuracy and cross-entropy on clean images, and images per second.

    Example: `moeprobe eval checkpoints/demo-baseline checkpoints/demo-prc --data digits`
    """

    name = "eval"
    function = "evaluate"
    title = "Accuracy on clean images"
    analyses = ("output",)
    headlines = (Headline("accuracy"),)
    audit = AuditEntry(
        order=4,
        properties=(
            Property(
                "accuracy",
                "Accuracy",
                (Headline("accuracy"),),
                "accuracy",
                advice={"at chance": "Check the normalization, the order of the classes and the weights."},
                command="moeprobe noise-sweep {models}",
            ),
        ),
    )
    layout = Layout.ALL
    needs_routing = False
    labels_required = True
    timed = True

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the printed table."""
        return "Clean images"
