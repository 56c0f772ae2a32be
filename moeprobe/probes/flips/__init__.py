"""The declaration of ``flips``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, AuditEntry, Headline, Panel, Probe, Property, Views
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.declarations.options import Options
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class

# Choices of later layers: as in the clean pass, or as their routers choose after the flip.
FIXED, FREE = "fixed", "free"


@dataclass(frozen=True, kw_only=True)
class Flips(Probe["Result"]):
    """What does it cost when one token gets another set of experts?

    In one layer, one sampled token of the clean image gets another set; everything else stays. The set is with the
    runner-up in place of the last (or first) chosen expert, drawn at random, or the one chosen under a perturbation.
    Its weights are recomputed. For texts, it prices the next token and all that follow; name a view of texts.

    Example: `moeprobe flips checkpoints/demo-baseline checkpoints/demo-prc --limit 100 --out reports/flips`
    """

    name = "flips"
    title = "The price of a flip"
    work = "moeprobe.probes.flips.measure:FlipsMeasurement"
    drawn_by = "moeprobe.probes.flips.figure:draw"
    concluded_by = "moeprobe.probes.flips.sentences:sentences"
    analyses = ("flips", "text_flips", "flip_costs")
    headlines = (
        Headline("flip_price_runner_up"),
        Headline("flip_size_runner_up"),
        Headline("flip_answer_runner_up", noun="share of flips that change the answer"),
        Headline("flip_next_runner_up"),
        Headline("flip_following_runner_up"),
    )
    panel = Panel.STRESS
    views = Views.SEVERITIES
    joinable = False
    leaves_out = False
    audit = AuditEntry(
        order=10,
        properties=(
            Property(
                "flips",
                "Price of a flip",
                (
                    Headline("flip_price_runner_up"),
                    Headline("flip_answer_runner_up", noun="share of changed answers"),
                ),
                "price",
                advice={"large": "Find the patches and layers whose flips cost most, by their margins."},
            ),
        ),
        images={"patches": 2},
        texts=None,
        most_images=60,
        figures=("flips",),
        statistics=2,
    )

    view: Annotated[
        str, Arg("A view with a severity that leaves patches in place; see: moeprobe list views.")
    ] = "gaussian_noise"
    severities: Annotated[
        Sequence[float] | None, Arg("The severity of the perturbation; default: the view's strongest.")
    ] = None
    patches: Annotated[
        int,
        Arg("Patches of an image that are flipped, in each layer to each kind of set.", low=1, high=10_000),
    ] = 8
    later: Annotated[
        str,
        Arg(
            "Choices of later layers: fixed as in the clean pass, or free to follow.",
            choices={FIXED: FIXED, FREE: FREE},
            words=(FIXED, FREE),
        ),
    ] = FIXED
    predict: Annotated[
        Sequence[str],
        Arg(
            "Comma-separated other views, each at all its severities: do prices add up to what their flips cost?"
        ),
    ] = ()

    def check(self) -> None:
        """Raise ``UserError`` where a field is out of range."""
        if self.severities is not None and len(self.severities) != 1:
            raise UserError(f"{option('severities')} takes one severity here; got {list(self.severities)}.")
        if self.predict and self.later != FIXED:
            raise UserError(
                f"{option('predict')} adds prices up, and with {option('later', FREE)} a price has the flips of later "
                f"layers in it; use {option('later', FIXED)}."
            )

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where the prices of all layers are needed and some are left out."""
        if self.predict and options.layers is not None:
            raise UserError(
                f"{option('predict')} needs the prices of flips in all layers; leave {option('layers')} out."
            )

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        return f"The price of a flip: one token's set replaced in one layer, later choices {self.later}"
