"""The declaration of ``sweep``, and what it shares with ``noise-sweep``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import (
    AGREEMENT,
    Agreement,
    Arg,
    AuditEntry,
    Headline,
    Layout,
    Probe,
    Property,
    Views,
)
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result


@dataclass(frozen=True, kw_only=True)
class Attributed(Probe["Result"]):
    """What can share out a change of the output between features and switched experts, by replayed routing."""

    attribute: Annotated[
        bool,
        Arg(
            "Replay clean routing on perturbed pixels and vice versa: how much of the change is due to switching?",
            in_request=False,
        ),
    ] = False
    gates: Annotated[
        str,
        Arg(
            "With --attribute: weights of the replayed experts, recomputed (for the pixels) or replayed as well.",
            in_request=False,
            words=("recomputed", "replayed"),
        ),
    ] = "recomputed"

    def check(self) -> None:
        """Raise ``UserError`` where the choice of gates has no effect."""
        if not self.attribute and self.gates != "recomputed":
            raise UserError(
                f"{option('gates')} says how {option('attribute')} replays a routing; add {option('attribute')}."
            )


@dataclass(frozen=True, kw_only=True)
class AlongSeverity(Attributed):
    """What is measured as a perturbation grows; the perturbation is ``view``, its steps are ``severities``."""

    kind = "sweep"
    title = "Routing along a perturbation"
    analyses = (
        *AGREEMENT,
        "confidence",
        "selection",
        "load",
        "unserved",
        "dropped",
        "buffer_fill",
        "experts_per_token",
        "output",
        "output_features",
    )
    optional = ("output", "output_features")
    headlines = (
        Agreement(at="strongest"),
        Headline("accuracy", at="weakest"),
        Headline("accuracy", at="strongest"),
        Headline("class_probability_features", at="strongest"),
        Headline("class_probability_switching", at="strongest"),
    )
    layout = Layout.ALONG_SEVERITY
    views = Views.SEVERITIES
    noise_floor = True

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return agreement, output and confidence along the severity."""
        from moeprobe.probes.sweep.figure import draw

        return draw(
            result.table,
            colors=result.sidecar.colors,
            unit=result.sidecar.severity_unit or "",
            gates=result.sidecar.request.replayed_gates,
        )


@dataclass(frozen=True, kw_only=True)
class Sweep(AlongSeverity):
    """Match with the clean image, confidence, load, agreement and accuracy as a perturbation grows.

    Example: `moeprobe sweep checkpoints/demo-baseline checkpoints/demo-prc --view affine --severities 0,0.25,0.5,1`
    """

    name = "sweep"
    audit = AuditEntry(
        order=2,
        properties=(
            Property(
                "noise",
                "Routing under noise on the embeddings",
                (Agreement(at="strongest"),),
                "agreement",
                command="moeprobe sweep {models} --view embedding_noise",
            ),
        ),
        images=None,
        texts={"view": "embedding_noise", "severities": (0.05, 0.1, 0.2)},
        figures=("routing",),
    )

    view: Annotated[
        str,
        Arg(
            "A view with a severity; see: moeprobe list views. With parameters: NAME,key=value.",
        ),
    ]
    severities: Annotated[
        Sequence[float] | None,
        Arg("Comma-separated severities; default: the view's own steps."),
    ] = None

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the view."""
        return self.view
