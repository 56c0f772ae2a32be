"""The declaration of ``agree``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Agreement, Arg, AuditEntry, Headline, Layout, Panel, Probe, Property
from moeprobe.errors import UserError
from moeprobe.runtime.arguments import check_two

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class

# What the column ``view`` calls a form that is compared with the first.
AGAINST = "against the first"


@dataclass(frozen=True, kw_only=True)
class Agree(Probe["Result"]):
    """Do two forms of one model route alike? Original and quantized, float32 and bfloat16, before and after conversion.

    All forms read the same inputs. Each is compared with the first, and the first with itself in batches of another
    size. Reports which tokens change experts and in which layer first, the price in log-probability, and how much of
    that goes with the choices of experts: each form repeats the other's.

    Example: `moeprobe agree checkpoints/demo-prc checkpoints/demo-prc,renormalise=true --out reports/agree`
    """

    name = "agree"
    title = "Two forms of one model"
    work = "moeprobe.probes.agree.measure:Forms"
    drawn_by = "moeprobe.probes.agree.figure:draw"
    concluded_with = "moeprobe.probes.agree.sentences:sentences"
    panel = Panel.STRESS
    analyses = (
        "match",
        "set_match",
        "slot_match",
        "weights",
        "disagreement",
        "touched",
        "first_layer",
        "layer_growth",
        "changed_margins",
        "output",
        "form_loss",
    )
    headlines = ()
    layout = Layout.BY_VIEW
    joinable = False
    leaves_out = False
    compares = False
    splits = False
    resumes = False
    at_least = True
    audit = AuditEntry(
        order=4,
        properties=(
            Property(
                "forms",
                "Routes like the first model",
                (Agreement(), Headline("choice_differs", noun="share of tokens that differ")),
                "forms",
                compared=False,
                of_pair=True,
            ),
        ),
        most_images=200,
        figures=("agree",),
    )

    gates: Annotated[
        str,
        Arg(
            "Weights of repeated experts: recomputed by the form that repeats them, or replayed from the other.",
            words=("recomputed", "replayed"),
        ),
    ] = "recomputed"

    def check_models(self, models: Sequence[Any]) -> None:
        """Raise ``UserError`` where there is nothing to compare with."""
        check_two(models, "forms of a model to compare")
        paths = [str(model) for model in models if isinstance(model, str | Path)]
        if len(set(paths)) < len(paths):
            raise UserError(
                f"{next(path for path in paths if paths.count(path) > 1)} is named twice, and {self.name} compares the "
                "first form with itself anyway; name another form, or a copy in another folder."
            )

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the sentence above the table."""
        return "Forms of one model, each against the first; the first in batches of another size"
