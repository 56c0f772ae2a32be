"""The declaration of ``noise-sweep``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from moeprobe.declarations import Agreement, Arg, AuditEntry, Property
from moeprobe.probes.sweep import AlongSeverity

# Largest standard deviation of noise, as its views have it (``inputs.views.base``, which ``--help`` does without).
LARGEST = 10


@dataclass(frozen=True, kw_only=True)
class NoiseSweep(AlongSeverity):
    """The gaussian_noise sweep: does noise change which experts the patches choose, and the answer?

    Example: `moeprobe noise-sweep checkpoints/demo-baseline checkpoints/demo-prc --sigmas 0,0.1,0.2 --attribute`
    """

    name = "noise-sweep"
    kind = "sweep"
    view = "gaussian_noise"
    audit = AuditEntry(
        order=2,
        properties=(
            Property(
                "noise",
                "Routing under noise, σ = 0.2",
                (Agreement(at="strongest"),),
                "agreement",
                advice={
                    "unstable": "Measure how much of the accuracy is lost by switching experts.",
                    "moderately stable": "Find the σ from which on routing changes.",
                },
                command="moeprobe noise-sweep {models}",
            ),
        ),
        images={"severities": (0.05, 0.1, 0.2)},
        texts=None,
        figures=("routing",),
    )

    severities: Annotated[
        Sequence[float] | None,
        Arg(
            "Comma-separated standard deviations, in units of the [0, 1] pixel range.",
            flag="--sigmas",
            keyword="sigmas",
            low=0,
            high=LARGEST,
            what="standard deviations",
        ),
    ] = None

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the view."""
        return self.view
