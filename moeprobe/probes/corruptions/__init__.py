"""The declaration of ``corruptions``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Agreement, Arg, AuditEntry, Headline, Layout, Panel, Probe, Property, Views
from moeprobe.errors import UserError, option
from moeprobe.inputs.corruptions import CONTROL, MEAN, MEAN_OF_ANY, MOVING, NAMES, SEVERITIES
from moeprobe.runtime.catalog import describe_unknown

if TYPE_CHECKING:
    from pandas import DataFrame

    from moeprobe.results.folder import Result  # noqa: F401  # named in the class

# One of each family, for an audit.
_FEW = ("impulse_noise", "motion_blur", "fog", "jpeg_compression")
_OVER = "on average over corruptions and severities"


@dataclass(frozen=True, kw_only=True)
class Corruptions(Probe["Result"]):
    """How far do routing and accuracy withstand the corruptions of ImageNet-C?

    All 19 at severities 1 to 5: accuracy and κ of routing for each, for each family and on average, with intervals
    paired over images. Means are over the 15 standard ones, as ImageNet-C's are: *mean* is for these corruptions, *mean
    of any* for others like them, with an interval over images and corruptions. Those that move content between
    patches have a control, which resamples alike and moves nothing by a pixel.

    Example: `moeprobe corruptions checkpoints/demo-baseline checkpoints/demo-prc --severities 1,3,5 --limit 50`
    """

    name = "corruptions"
    title = "Routing under the corruptions of ImageNet-C"
    work = "moeprobe.probes.corruptions.measure:CorruptionsMeasurement"
    drawn_by = "moeprobe.probes.corruptions.figure:draw"
    panel = Panel.STRESS
    view = "corruption"
    views = Views.SEVERITIES
    analyses = ("match", "set_match", "slot_match", "weights", "output", "output_features")
    optional = ("output", "output_features")
    headlines = (
        Agreement(at="mean", view=MEAN, severity=_OVER),
        Headline("accuracy", at="mean", view=MEAN, severity=_OVER, beside=True),
    )
    layout = Layout.MEANS
    compares = False
    joinable = False
    audit = AuditEntry(
        order=11,
        properties=(
            Property(
                "corruptions",
                "Routing under corruptions",
                (Agreement(),),
                "agreement",
                advice={
                    "unstable": "Compare it with all corruptions and severities, and with the accuracy there."
                },
                views=_FEW,
                mean_view=MEAN,
            ),
        ),
        images={"corruptions": _FEW, "severities": (3,), "controls": False},
        texts=None,
        most_images=60,
        figures=("corruptions",),
    )

    corruptions: Annotated[
        Sequence[str], Arg(f"Comma-separated corruptions: {', '.join(NAMES)}; default all.")
    ] = NAMES
    severities: Annotated[Sequence[float], Arg("Comma-separated severities, whole numbers from 1 to 5.")] = (
        SEVERITIES
    )
    baseline: Annotated[
        str | None,
        Arg(
            "One of the checkpoints, by name: errors of the others are divided by its errors (corruption error)."
        ),
    ] = None
    controls: Annotated[bool, Arg(f"Run the geometric controls of {', '.join(MOVING)} too.")] = True

    def check(self) -> None:
        """Raise ``UserError`` for a corruption or a severity that there is not, or is there twice."""
        for name in self.corruptions:
            if name not in NAMES:
                raise UserError(describe_unknown("corruption", name, NAMES))
        for name, values in (("corruptions", self.corruptions), ("severities", self.severities)):
            if not values or len(set(values)) < len(values):
                raise UserError(
                    f"{option(name)} takes each value once, and at least one; got {list(values)}."
                )
        for severity in self.severities:
            if severity not in SEVERITIES:
                raise UserError(f"{option('severities')} takes whole numbers from 1 to 5; got {severity:g}.")

    @property
    def variants(self) -> list[tuple[str, str, bool]]:
        """What is run: its name in the column ``view``, the kind of corruption, and whether it moves content."""
        controls = [(f"{kind}{CONTROL}", kind, False) for kind in MOVING if kind in self.corruptions]
        return [(kind, kind, True) for kind in self.corruptions] + (controls if self.controls else [])

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return what the rows of the tables are."""
        return "Mean over severities, against the clean image"

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return under which corruption routing changes most and least, and what the controls explain."""
        from moeprobe.judging.selection import Extreme
        from moeprobe.results.layouts.by_view import agreement_rows
        from moeprobe.results.numbers import interval

        rows = agreement_rows(table)
        lines = []
        for checkpoint, of_checkpoint in rows[rows["value"].notna()].groupby("checkpoint", sort=False):
            layer = of_checkpoint["layer"].iloc[0]
            of_layer = of_checkpoint[of_checkpoint["layer"] == layer]
            by_view = {row["view"]: row for row in of_layer.to_dict("records")}
            kinds = sorted(
                (view for view in by_view if view in NAMES), key=lambda view: by_view[view]["value"]
            )
            if len(kinds) > 1:
                of_kinds = of_layer[of_layer["view"].isin(kinds)]
                ends = [Extreme.of(of_kinds, lowest=end, names=of_kinds["view"]) for end in (True, False)]
                low, high = (f"{end.row['view']} {interval(end.row)}{end.inserted()}" for end in ends)
                lines.append(f"{checkpoint}, κ in {layer}: lowest under {low}, highest under {high}.")
            if MEAN_OF_ANY in by_view:
                of_images, of_corruptions = (interval(by_view[view]) for view in (MEAN, MEAN_OF_ANY))
                lines.append(
                    f"{checkpoint}, mean κ in {layer}: {of_images} for these corruptions, "
                    f"{of_corruptions} for others like them."
                )
            controls = [
                f"{kind} {interval(by_view[kind])}, control {interval(by_view[kind + CONTROL])}"
                for kind in MOVING
                if kind in by_view and kind + CONTROL in by_view
            ]
            if controls:
                lines.append(f"{checkpoint}, κ with and without movement: {'; '.join(controls)}.")
        return lines
