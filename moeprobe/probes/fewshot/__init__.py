"""The declaration of ``fewshot``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Arg, Headline, Layout, Probe
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.declarations.options import Options
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Fewshot(Probe["Result"]):
    """How good are the features for few labeled images? Ridge regression on the frozen pre-logits.

    The shots are drawn from the train split; accuracy is measured on the images of --split. The strength of the penalty
    is chosen on other training images, never on images of --split.

    Example: `moeprobe fewshot checkpoints/demo-baseline checkpoints/demo-prc --shots 1,5,10 --out reports/fewshot`
    """

    name = "fewshot"
    title = "Few-shot accuracy of frozen features"
    work = "moeprobe.probes.fewshot.measure:FewshotMeasurement"
    drawn_by = "moeprobe.probes.fewshot.figure:draw"
    analyses = ("fewshot",)
    headlines = (
        Headline(
            "fewshot_accuracy",
            at="strongest",
            companions=(("by chance", ("fewshot_accuracy_chance", "pooled")),),
            severity="with {severity:g} shots, the most of the run",
        ),
    )
    layout = Layout.FEW_SHOTS
    joinable = False
    needs_routing = False
    leaves_out = False

    shots: Annotated[
        Sequence[int],
        Arg("Training images per class, comma-separated, e.g. 1,5,10,25.", in_request=False),
    ] = (10,)
    draws: Annotated[int, Arg("Draws of the training images, the same for all checkpoints.", low=1)] = 5

    def check(self) -> None:
        """Raise ``UserError`` unless shots and draws are counts."""
        counts = self.shots
        if (
            not counts
            or min(counts) < 1
            or len(set(counts)) < len(counts)
            or any(count % 1 for count in counts)
        ):
            shots = ",".join(f"{count:g}" for count in counts)
            raise UserError(
                f"{option('shots')} takes different whole numbers from 1 up, e.g. 1,5,10; got {shots!r}."
            )

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where the judged images would be those that are learned from, or a layer is named."""
        if options.split == "train":
            raise UserError(
                "The shots are drawn from the split train, so it cannot be judged too; take val or test."
            )
        if options.layers is not None:
            raise UserError(
                f"Features belong to the whole model, not to a layer; leave {option('layers')} out."
            )
