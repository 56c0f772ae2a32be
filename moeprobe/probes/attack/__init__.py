"""The declaration of ``attack``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.errors import UserError, option
from moeprobe.probes.base import AGREEMENT, Agreement, Arg, Headline, Layout, Panel, Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result

# What an epsilon of 1 is: images have values from 0 to 1.
LEVELS = 255
UNIT = f"ε in 1/{LEVELS}"
# What tables call the perturbed images, by direction.
VIEWS = {"gradient": "attack", "random": "random_signs"}


@dataclass(frozen=True, kw_only=True)
class Attack(Probe["Result"]):
    """Does a small change of the pixels that harms the answer change the experts, too?

    Projected gradient ascent on the cross-entropy, with every value of the image kept within epsilon of the original;
    the routing is compared with the clean image's. `--direction random` moves each value by epsilon, up or down
    at random: the effect of a change of that size that is not chosen to harm.

    Example: `moeprobe attack checkpoints/demo-baseline checkpoints/demo-prc --epsilons 0,1,4 --limit 100`
    """

    name: ClassVar[str] = "attack"
    title: ClassVar[str] = "Routing under an attack on the answer"
    work: ClassVar[str] = "moeprobe.probes.attack.measure:AttackMeasurement"
    panel: ClassVar[Panel] = Panel.STRESS
    analyses: ClassVar[tuple[str, ...]] = (*AGREEMENT, "confidence", "selection", "load", "output")
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = (
        Agreement(at="strongest"),
        Headline("accuracy", at="weakest"),
        Headline("accuracy", at="strongest"),
    )
    layout: ClassVar[Layout] = Layout.ALONG_SEVERITY

    epsilons: Annotated[
        Sequence[float], Arg("Comma-separated largest changes of an image value, in 255ths.")
    ] = (0, 1, 2, 4, 8)
    steps: Annotated[int, Arg("Steps of the ascent, each of size 2.5 epsilon / steps.")] = 10
    direction: Annotated[
        str,
        Arg(
            "gradient: up the cross-entropy; random: signs drawn for each image.",
            choices={name: name for name in VIEWS},
        ),
    ] = "gradient"

    def check(self) -> None:
        """Raise ``UserError`` where a number is out of range."""
        if not self.epsilons or any(not 0 <= epsilon <= LEVELS for epsilon in self.epsilons):
            raise UserError(
                f"{option('epsilons')} takes numbers from 0 to {LEVELS}, in {LEVELS}ths of the range of a pixel; got "
                f"{list(self.epsilons)}."
            )
        if not 1 <= self.steps <= 1000:
            raise UserError(f"{option('steps')} takes a whole number from 1 to 1,000; got {self.steps}.")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return how the images are perturbed."""
        return VIEWS[self.direction]

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return agreement, confidence and output along epsilon."""
        from moeprobe.probes.sweep.figure import draw

        return draw(result.table, colors=result.sidecar.colors, unit=result.sidecar.severity_unit or "")
