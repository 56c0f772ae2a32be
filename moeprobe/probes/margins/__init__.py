"""The declaration of ``margins``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, AuditEntry, Headline, Panel, Probe, Property, Views
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import ORDINARY
from moeprobe.probes.noise_sweep import LARGEST
from moeprobe.runtime.device import FLOAT32

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from moeprobe.declarations.options import Options
    from moeprobe.results.folder import Result

# A perturbation that is no view: the clean inputs, run in this dtype.
BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Margins(Probe["Result"]):
    """How much noise changes a token's set of experts, and do margins predict it?

    One draw of noise grows from level to level: at which does each set change first? A few draws of small noise say how
    far noise moves each margin, and so how likely each set is to change at every level.

    Example: `moeprobe margins checkpoints/demo-baseline checkpoints/demo-prc --limit 200 --out reports/margins`
    """

    name = "margins"
    title = "Critical noise, and flips that margins predict"
    work = "moeprobe.probes.margins.measure:MarginsMeasurement"
    analyses = ("selection", "critical_noise", "set_survival", "flip_prediction")
    headlines = (
        Headline("critical_sigma_mean"),
        Headline("margin_over_sensitivity"),
        Headline("flip_ece", at="weakest"),
        Headline("flip_ece_floor", at="weakest"),
        Headline("flip_auroc", at="weakest"),
    )
    panel = Panel.STRESS
    views = Views.SEVERITIES
    joinable = False
    leaves_out = False
    audit = AuditEntry(
        order=9,
        properties=(
            Property(
                "margins",
                "Margins predict flips",
                (
                    Headline("flip_auroc", at="weakest"),
                    Headline("critical_sigma_mean", noun="mean critical σ"),
                ),
                "prediction",
                command="moeprobe margins {models}",
                text_command="moeprobe margins {models} --view embedding_noise",
            ),
        ),
        images={"severities": (0.05, 0.1, 0.2), "draws": 4},
        texts={"view": "embedding_noise", "severities": (0.05, 0.1, 0.2), "draws": 4},
        most_images=60,
        figures=("margins",),
    )

    view: Annotated[str, Arg("gaussian_noise of images, or embedding_noise of texts.")] = "gaussian_noise"
    severities: Annotated[
        Sequence[float] | None,
        Arg(
            "Comma-separated levels of the nested noise, its standard deviations; default: the view's own.",
            flag="--sigmas",
            keyword="sigmas",
            low=0,
            high=LARGEST,
            what="standard deviations",
        ),
    ] = None
    draws: Annotated[
        int,
        Arg("Draws of small noise from which the sensitivity of a margin is estimated.", low=2, high=1000),
    ] = 8
    small: Annotated[
        float,
        Arg("Standard deviation of the small noise.", above=0, high=LARGEST, what="a standard deviation"),
    ] = 0.01
    transfer: Annotated[
        str | None,
        Arg(
            "Another perturbation whose flips margins predict: a view, of a pair of views its second, or bfloat16."
        ),
    ] = None
    transfer_severity: Annotated[
        float | None, Arg("Severity of that perturbation; default: the view's strongest.")
    ] = None

    def check(self) -> None:
        """Raise ``UserError`` where a field is out of range."""
        if self.transfer_severity is not None and self.transfer is None:
            raise UserError(
                f"{option('transfer_severity')} belongs to {option('transfer')}: name the view, or leave it out."
            )

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where passes would be in the precision that they are compared with."""
        if self.transfer == BFLOAT16 and options.precision != FLOAT32:
            raise UserError(
                f"{option('transfer', BFLOAT16)} compares with passes in float32; leave {option('precision')} out."
            )

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        return (
            f"Sets of experts along nested noise; sensitivity from {self.draws} draws of σ = {self.small:g}"
        )

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return how margins, and what noise does to them, differ from the first checkpoint's."""
        rows = table[table["tokens"].isin(ORDINARY)]
        first, *candidates = list(dict.fromkeys(rows["checkpoint"])) or [""]
        layers = [rows[rows["layer"] == layer] for layer in dict.fromkeys(rows["layer"])]
        sentences = (_compare(of_layer, name, first) for of_layer in layers for name in candidates)
        return [sentence for sentence in sentences if sentence]

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the survival curves of sets, and the reliability of predicted flips."""
        from moeprobe.probes.margins.figure import draw

        return draw(result.table, colors=result.sidecar.colors, unit=result.sidecar.severity_unit or "")


def _compare(rows: "DataFrame", checkpoint: str, reference: str) -> str | None:
    """Return how the margins of a layer differ between two checkpoints; None where a number is missing."""
    is_in_logits = (rows["metric"] == "selection_margin_logit").any()
    margin = "selection_margin_logit" if is_in_logits else "selection_margin"
    ratios = [_ratio(rows, checkpoint, reference, name) for name in (margin, "margin_sensitivity")]
    sigmas = [_number(rows, name, "critical_sigma_mean") for name in (checkpoint, reference)]
    if None in ratios or None in sigmas:
        return None
    texts = [f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in filter(None, sigmas)]
    return (
        f"{rows['layer'].iloc[0]}: margins of {checkpoint} are {ratios[0]:.2f} times as large as in {reference}, and "
        f"noise moves them {ratios[1]:.2f} times as much. Mean critical σ: {texts[0]} and {texts[1]}."
    )


def _ratio(rows: "DataFrame", checkpoint: str, reference: str, metric: str) -> float | None:
    """Return a value over the reference's; None where one of them is missing, or the latter is 0."""
    ours, theirs = (_number(rows, name, metric) for name in (checkpoint, reference))
    return ours[0] / theirs[0] if ours and theirs and theirs[0] else None


def _number(rows: "DataFrame", checkpoint: str, metric: str) -> tuple[float, float, float] | None:
    """Return the value of a metric with its interval; None where it is missing."""
    numbers = rows.loc[
        (rows["checkpoint"] == checkpoint) & (rows["metric"] == metric), ["value", "ci_low", "ci_high"]
    ]
    if numbers.empty or numbers.isna().any(axis=None):
        return None
    value, low, high = numbers.iloc[0]
    return float(value), float(low), float(high)
