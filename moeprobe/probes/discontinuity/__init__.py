"""The declaration of ``discontinuity``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, Headline, Probe, Views
from moeprobe.errors import UserError

if TYPE_CHECKING:
    from moeprobe.probes.discontinuity.measure import DiscontinuityResult  # noqa: F401  # named in the class

MIN_STEPS = 200
RANDOM, LARGEST_JUMP = "random", "largest-jump"


@dataclass(frozen=True, kw_only=True)
class Discontinuity(Probe["DiscontinuityResult"]):
    """How far does the output jump when tokens switch experts as a perturbation grows?

    Every switch is located by bisection. Its jump is measured at a single input, by replaying the routing before the
    switch.

    Example: `moeprobe discontinuity checkpoints/demo-baseline checkpoints/demo-prc --limit 50 --out reports/jumps`
    """

    name = "discontinuity"
    title = "Jumps of the output where tokens switch experts"
    writes = ("paths.csv", "switches.csv")
    work = "moeprobe.probes.discontinuity.measure:DiscontinuityMeasurement"
    analyses = ("discontinuity",)
    headlines = (
        Headline("jump_sum"),
        Headline("switches"),
    )
    views = Views.SEVERITIES
    joinable = False
    leaves_out = False
    at_least = True

    view: Annotated[str, Arg("A view with a severity; see: moeprobe list views.")] = "gaussian_noise"
    steps: Annotated[
        int, Arg("Equal steps along the severity, at least 200.", in_request=False, low=MIN_STEPS)
    ] = MIN_STEPS
    until: Annotated[
        float | None, Arg("Largest severity; default: the last of the view's own steps.", in_request=False)
    ] = None
    images: Annotated[
        Sequence[str],
        Arg("Names of images of the data set, comma-separated; default: all.", in_request=False),
    ] = ()
    files: Annotated[
        Sequence[str | Path],
        Arg("An image file of your own; may be repeated.", flag="--file", in_request=False),
    ] = ()
    count: Annotated[
        int,
        Arg("Number of images to draw.", in_request=False, of_figures=True, low=1, what="a number of images"),
    ] = 3
    pick: Annotated[
        str,
        Arg(
            "Which images are drawn: random ones, or those with the largest jump of any checkpoint.",
            choices={RANDOM: RANDOM, LARGEST_JUMP: LARGEST_JUMP},
            in_request=False,
            of_figures=True,
        ),
    ] = RANDOM

    def check(self) -> None:
        """Raise ``UserError`` where there are too few steps, nothing is drawn, or nobody knows what."""
        if self.pick not in (RANDOM, LARGEST_JUMP):
            raise UserError(f"Images are picked {RANDOM} or {LARGEST_JUMP}; got {self.pick!r}.")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return how far the paths go."""
        request, unit = sidecar["request"], sidecar["severity_unit"]
        path = f"{request['view']['name']} up to {request['severities'][-1]:g} ({unit})"
        return f"Switches and jumps along {path}, per image"
