"""The declaration of ``eval``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from moeprobe.probes.base import Agreement, AuditEntry, Headline, Layout, Probe, Property

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  (named in quotes, so that nothing is imported)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class Evaluate(Probe["Result"]):
    """Accuracy, top-5 accuracy and cross-entropy on clean images, and images per second.

    Example: `moeprobe eval checkpoints/demo-baseline checkpoints/demo-prc --data digits`
    """

    name: ClassVar[str] = "eval"
    title: ClassVar[str] = "Accuracy on clean images"
    analyses: ClassVar[tuple[str, ...]] = ("output",)
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = (Headline("accuracy"),)
    audit: ClassVar[AuditEntry | None] = AuditEntry(
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
    layout: ClassVar[Layout] = Layout.ALL
    needs_routing: ClassVar[bool] = False
    labels_required: ClassVar[bool] = True
    timed: ClassVar[bool] = True

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the printed table."""
        return "Clean images"
