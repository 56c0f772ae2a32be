"""The declaration of ``attack``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import AGREEMENT, Agreement, Arg, Headline, Layout, Panel
from moeprobe.declarations.fields import plain
from moeprobe.errors import UserError, option
from moeprobe.probes.sweep import Attributed
from moeprobe.runtime.catalog import describe_unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result

# What an epsilon of 1 is: images have values from 0 to 1.
LEVELS = 255
LINF, L2 = "linf", "l2"
UNITS = {LINF: f"ε in 1/{LEVELS}", L2: f"ℓ2 norm ε in 1/{LEVELS}"}
# The epsilons of a run that names none: of the whole image the ℓ2 norm is larger.
EPSILONS = {LINF: (0, 1, 2, 4, 8), L2: (0, 16, 32, 64, 128)}
DIRECTIONS = ("gradient", "random")
ANSWER, ROUTES, KEEPING_ANSWER = "answer", "routes", "routes-keeping-answer"
ONE_EXPERT, OVERLOAD, JOINT = "one-expert", "overload", "joint"
# What is raised, in words, by what is attacked.
LOSSES = {
    ANSWER: "the cross-entropy of the label",
    ROUTES: "minus the mean margin of the tokens that still have their clean sets",
    KEEPING_ANSWER: "minus that margin, minus the cross-entropy of the clean answer",
    ONE_EXPERT: "minus the mean of what tokens lack to have the expert",
    OVERLOAD: "minus the mean of what tokens lack to have the busiest expert of their clean image",
    JOINT: "the cross-entropy of the label, minus the mean margin of the tokens that still have their clean sets",
}
# What tables call images that are perturbed up a gradient, by what is attacked, and those perturbed at random.
VIEWS = {on: "attack" if on == ANSWER else f"attack_{on.replace('-', '_')}" for on in LOSSES}
RANDOM = "random_signs"
RANDOM_VIEWS = {LINF: RANDOM, L2: "random_direction"}
# Headlines are about the first of these that a run has.
_LEADING = (*VIEWS.values(), *RANDOM_VIEWS.values())


@dataclass(frozen=True, kw_only=True)
class Attack(Attributed):
    """Does a small, harmful change of the pixels also change the experts?

    Projected gradient ascent, with the change of the image no larger than epsilon; the routing is compared with the
    clean image's. Random changes of the same norm stand beside it. `--on` names the goal: the loss of the answer,
    the tokens that leave their sets of experts, or those that go to one expert.

    Example: `moeprobe attack checkpoints/demo-baseline checkpoints/demo-prc --epsilons 0,1,4 --limit 100`
    """

    name = "attack"
    title = "Routing under an attack"
    work = "moeprobe.probes.attack.measure:AttackMeasurement"
    panel = Panel.STRESS
    analyses = (
        *AGREEMENT,
        "confidence",
        "selection",
        "load",
        "busiest_expert",
        "dropped",
        "output",
    )
    headlines = (
        Agreement(at="strongest", view=_LEADING),
        Headline("accuracy", at="weakest", view=_LEADING),
        Headline("accuracy", at="strongest", view=_LEADING),
        Headline("accuracy_switching", at="strongest", view=_LEADING),
    )
    layout = Layout.ALONG_SEVERITY

    epsilons: Annotated[
        Sequence[float] | None,
        Arg(
            "Comma-separated largest norms of a change, in 255ths; default: 0,1,2,4,8, or 0,16,32,64,128 with l2."
        ),
    ] = None
    norm: Annotated[
        str,
        Arg(
            "linf: the largest change of a value; l2: the root of the summed squares of all changes of an image.",
            choices={name: name for name in EPSILONS},
        ),
    ] = LINF
    steps: Annotated[int, Arg("Steps of the ascent, each of size 2.5 epsilon / steps.", low=1, high=1000)] = (
        10
    )
    restarts: Annotated[
        int,
        Arg(
            "Ascents from random points, beside that from the image itself; the worst of each image counts.",
            low=0,
            high=1000,
        ),
    ] = 0
    direction: Annotated[
        str,
        Arg(
            "gradient: up the objective, with random changes beside it; random: these alone.",
            choices={name: name for name in DIRECTIONS},
        ),
    ] = "gradient"
    on: Annotated[
        str,
        Arg(
            "What is attacked: the answer, the sets of experts, these while the answer stays, both together, or the "
            "load: all tokens to one expert, or to the busiest.",
            choices={name: name for name in VIEWS},
        ),
    ] = ANSWER
    expert: Annotated[int | None, Arg("With --on one-expert: the expert, from 0.")] = None
    transfer: Annotated[
        bool,
        Arg(
            "Also judge each checkpoint on the images that were crafted on every other one; all are in memory at once."
        ),
    ] = False

    def needs_all_models(self) -> bool:
        """Whether images are crafted on one model and judged by another."""
        return self.transfer

    def check(self) -> None:
        """Raise ``UserError`` where a field is out of range, or two of them do not go together."""
        super().check()
        for what, value, values in (
            ("norm", self.norm, tuple(EPSILONS)),
            ("direction", self.direction, DIRECTIONS),
            ("target of an attack", self.on, tuple(VIEWS)),
        ):
            if value not in values:
                raise UserError(describe_unknown(what, value, values))
        highest = LEVELS if self.norm == LINF else math.inf
        if not self.levels or any(
            not (0 <= level <= highest and math.isfinite(level)) for level in self.levels
        ):
            bounds = f"numbers from 0 to {LEVELS}" if self.norm == LINF else "numbers of at least 0"
            raise UserError(
                f"{option('epsilons')} takes {bounds}, in {LEVELS}ths of the range of a pixel; got "
                f"{list(self.levels)}."
            )
        if (self.expert is None) == (self.on == ONE_EXPERT) or (self.expert or 0) < 0:
            raise UserError(
                f"{option('on', ONE_EXPERT)} needs {option('expert')} (a number from 0), and no other "
                f"{option('on')} takes it."
            )
        if self.direction == "random":
            self._check_random()

    def _check_random(self) -> None:
        """Raise ``UserError`` where an option is about a gradient that is not followed."""
        if self.on != ANSWER:
            raise UserError(
                f"Random changes follow no gradient, so they attack neither answer nor routes; leave out "
                f"{option('on', self.on)} or {option('direction', 'random')}."
            )
        for name in ("restarts", "transfer"):
            if getattr(self, name):
                raise UserError(
                    f"Random changes follow no gradient; leave out {option(name)} or "
                    f"{option('direction', 'random')}."
                )

    @property
    def levels(self) -> Sequence[float]:
        """The epsilons of the run, by default the ones of its norm."""
        return EPSILONS[self.norm] if self.epsilons is None else self.epsilons

    def request(self) -> dict[str, Any]:
        """Return the fields that the numbers depend on, with the epsilons of the run."""
        return super().request() | {"epsilons": plain(self.levels)}

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return how the images are perturbed."""
        return self.shown_as

    @property
    def shown_as(self) -> str:
        """What tables call the perturbed images."""
        return self.random_view if self.direction == "random" else VIEWS[self.on]

    @property
    def random_view(self) -> str:
        """What tables call the images that are changed at random."""
        return RANDOM_VIEWS[self.norm]

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return agreement, confidence and output along epsilon, and a matrix of transferred attacks."""
        from moeprobe.probes.attack.figure import draw

        sidecar = result.sidecar
        return draw(
            result.table,
            colors=sidecar.colors,
            unit=sidecar.severity_unit or "",
            gates=sidecar.request.replayed_gates,
            view=self.shown_as,
            beside=self.random_view,
        )
