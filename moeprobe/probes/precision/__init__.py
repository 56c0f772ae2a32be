"""The declaration of ``precision``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Agreement, Arg, AuditEntry, Layout, Panel, Probe, Property, Rule
from moeprobe.errors import UserError, option
from moeprobe.routing.parts import PARTS
from moeprobe.runtime.catalog import describe_unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from moeprobe.results.folder import Result

FORMATS = ("bf16", "fp16", "fp8_e4m3", "int8", "int4_g128")
# All parts at once.
WHOLE = "whole"


@dataclass(frozen=True, kw_only=True)
class Precision(Probe["Result"]):
    """Which parts of a model can be quantized without changing the routing?

    The weights of one part at a time, and of the whole model, are rounded to each format. Each rounded model is
    compared with the original on the same inputs: match and κ of each layer, accuracy, and for language models the
    log-probability of the text. Rounding is to the nearest, without calibration, with one scale per output (int4: per
    128 inputs).

    Example: `moeprobe precision checkpoints/demo-baseline checkpoints/demo-prc --formats bf16,int8,int4_g128`
    """

    name = "precision"
    title = "Routing under quantized weights"
    work = "moeprobe.probes.precision.measure:PrecisionMeasurement"
    concluded_by = "moeprobe.probes.precision.sentences:sentences"
    panel = Panel.STRESS
    analyses = (
        "match",
        "set_match",
        "slot_match",
        "weights",
        "output",
        "log_probability",
    )
    optional = ("output", "log_probability")
    headlines = ()
    layout = Layout.BY_VIEW
    joinable = False
    refuses_precision = "rounds weights, and computes with them in float32"
    refuses_parallel = "rounds weights, so that each process needs all of them"
    compares = False
    audit = AuditEntry(
        order=7,
        properties=(
            Property(
                "precision",
                "Parts that may be quantized",
                (Agreement(),),
                "quantized",
                rule=Rule.VARIANTS,
                advice={
                    "fair": "Leave the parts out that are not listed, or check them on more images.",
                    "poor": "Quantize nothing without checking the output on more images.",
                },
                command="moeprobe precision {models}",
            ),
        ),
        images={"formats": ("bf16", "int8")},
        texts={"formats": ("bf16", "int8")},
        most_images=200,
        figures=("precision",),
    )

    parts: Annotated[
        Sequence[str], Arg(f"Comma-separated parts whose weights are rounded: {', '.join(PARTS)}.")
    ] = PARTS
    formats: Annotated[Sequence[str], Arg(f"Comma-separated formats: {', '.join(FORMATS)}.")] = FORMATS

    def check(self) -> None:
        """Raise ``UserError`` for a part or a format that there is not, or is there twice."""
        for what, values, choices in (("part", self.parts, PARTS), ("format", self.formats, FORMATS)):
            for name in values:
                if name not in choices:
                    raise UserError(describe_unknown(what, name, choices))
            if not values or len(set(values)) < len(values):
                raise UserError(
                    f"{option(f'{what}s')} takes each of {', '.join(choices)} once at most, and at least one."
                )

    @property
    def variants(self) -> list[tuple[str, tuple[str, ...], str]]:
        """What is run: its name in the column ``view``, the parts whose weights are rounded, and the format."""
        several = [(WHOLE, tuple(PARTS))] if len(self.parts) > 1 else []
        parts = [*((part, (part,)) for part in self.parts), *several]
        return [(f"{name} {form}", which, form) for form in self.formats for name, which in parts]

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the compared precisions."""
        return "Weights rounded to a format, against the model as it is"

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the share of choices that differ, for each part along the formats."""
        from moeprobe.probes.precision.figure import draw

        return draw(by_part(result.table), colors=result.sidecar.colors, formats=self.formats)


def by_part(table: "DataFrame") -> "DataFrame":
    """Return the share of tokens that change experts (for k > 1, their set), with ``part`` and ``format``."""
    from moeprobe.results.layouts.by_view import flips

    rows = flips(table)
    words = rows["view"].str.split(" ", n=1)
    return rows.assign(part=words.str[0], format=words.str[1])
