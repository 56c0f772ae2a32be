"""The declaration of ``attack``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.errors import UserError, option
from moeprobe.probes.base import AGREEMENT, Agreement, Arg, Headline, Layout, Panel, Probe
from moeprobe.runtime.catalog import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result

# What an epsilon of 1 is: images have values from 0 to 1.
LEVELS = 255
UNIT = f"ε in 1/{LEVELS}"
DIRECTIONS = ("gradient", "random")
ANSWER, ROUTES, KEEPING_ANSWER = "answer", "routes", "routes-keeping-answer"
# What tables call images that are perturbed up a gradient, by what is attacked, and those perturbed at random.
VIEWS = {ANSWER: "attack", ROUTES: "attack_routes", KEEPING_ANSWER: "attack_routes_keeping_answer"}
RANDOM = "random_signs"


@dataclass(frozen=True, kw_only=True)
class Attack(Probe["Result"]):
    """Does a small change of the pixels that harms the answer change the experts, too?

    Projected gradient ascent on the cross-entropy, with every value of the image kept within epsilon of the original;
    the routing is compared with the clean image's. `--direction random` moves each value by epsilon, up or down
    at random: the effect of a change of that size that is not chosen to harm. `--on routes` attacks the
    routing instead: the margins of the tokens that still have their clean set of experts.

    Example: `moeprobe attack checkpoints/demo-baseline checkpoints/demo-prc --epsilons 0,1,4 --limit 100`
    """

    name: ClassVar[str] = "attack"
    title: ClassVar[str] = "Routing under an attack"
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
            choices={name: name for name in DIRECTIONS},
        ),
    ] = "gradient"
    on: Annotated[
        str,
        Arg(
            "What the gradient is of: the answer, the sets of experts, or these while the answer stays.",
            choices={name: name for name in VIEWS},
        ),
    ] = ANSWER

    def check(self) -> None:
        """Raise ``UserError`` where a number is out of range."""
        if not self.epsilons or any(not 0 <= epsilon <= LEVELS for epsilon in self.epsilons):
            raise UserError(
                f"{option('epsilons')} takes numbers from 0 to {LEVELS}, in {LEVELS}ths of the range of a pixel; got "
                f"{list(self.epsilons)}."
            )
        if self.on not in VIEWS:
            raise UserError(unknown("target of an attack", self.on, tuple(VIEWS)))
        if self.direction == "random" and self.on != ANSWER:
            raise UserError(
                f"Random signs follow no gradient, so they attack neither answer nor routes; leave out "
                f"{option('on', self.on)} or {option('direction', 'random')}."
            )
        if not 1 <= self.steps <= 1000:
            raise UserError(f"{option('steps')} takes a whole number from 1 to 1,000; got {self.steps}.")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return how the images are perturbed."""
        return self.shown_as

    @property
    def shown_as(self) -> str:
        """What tables call the perturbed images."""
        return RANDOM if self.direction == "random" else VIEWS[self.on]

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return agreement, confidence and output along epsilon."""
        from moeprobe.probes.sweep.figure import draw

        return draw(result.table, colors=result.sidecar.colors, unit=result.sidecar.severity_unit or "")
