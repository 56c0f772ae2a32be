"""The declaration of ``coverage``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Arg, Layout, Probe
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result

NEED = Arg("Tokens n that every expert of every layer should have.", low=1)
WRITE = Arg(
    "JSON lines to write the ids of a small subset into: experts that have n tokens in the data have them in it.",
    in_request=False,
)
# What ``need`` is, unless it is given.
ENOUGH = 128


@dataclass(frozen=True, kw_only=True)
class Coverage(Probe["Result"]):
    """How many tokens of calibration data until every expert of every layer has enough of them?

    For GPTQ, AWQ or NVFP4: the share of experts with n tokens over the tokens (patches) of the data, in random orders
    of the inputs, beside an even router (coupon collector); the experts that never get n; which of several data sets
    covers most with as many tokens; and a small subset of inputs that is enough.

    Example: `moeprobe coverage checkpoints/demo-baseline checkpoints/demo-prc --need 128 --write subset.jsonl`
    """

    name = "coverage"
    title = "Coverage of experts by data"
    work = "moeprobe.probes.coverage.measure:CoverageMeasurement"
    concluded_by = "moeprobe.probes.coverage.sentences:sentences"
    analyses = ("expert_coverage",)
    headlines = ()
    layout = Layout.COVERAGE
    joinable = False
    compares = False
    leaves_out = False
    written = ("write",)

    need: Annotated[int, NEED] = ENOUGH
    other_data: Annotated[
        Sequence[str],
        Arg("Other data sets, comma-separated, to compare with --data for as many tokens each."),
    ] = ()
    write: Annotated[Path | None, WRITE] = None

    def check_data(self, kind: type, data: str) -> None:
        """Raise ``UserError`` where one of the data sets does not exist, or is named twice."""
        from moeprobe.inputs.data.readers import naming  # it brings NumPy

        names = [data, *self.other_data]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise UserError(f"{name} is named twice; leave it out of {option('other_data')}.")
        for name in self.other_data:
            naming.resolve_name(name)

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the figures of a result by name."""
        from moeprobe.probes.coverage import figure

        return figure.draw(result)
