"""The declaration of ``trace align``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Arg, Layout, Panel
from moeprobe.declarations.recording_probe import NAMED, Files, MatchedTraces
from moeprobe.probes.align import Align
from moeprobe.runtime.arguments import check_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result


@dataclass(frozen=True, kw_only=True)
class AlignTraces(MatchedTraces["Result"]):
    """Which experts of two recordings correspond? As moeprobe align, without the models.

    The alignment is fitted to one half of the inputs and judged on the other, both ways. Unrelated inputs show how
    well the best of many alignments agrees by chance.

    Example: `moeprobe trace align traces/demo-baseline/clean.parquet traces/demo-prc/clean.parquet`
    """

    name = "trace align"
    function = "align_traces"
    kind = Align.kind
    title = Align.title
    work = "moeprobe.recorded.align_traces.measure:RecordedAlignment"
    concluded_by = Align.concluded_by
    analyses = Align.analyses
    headlines = ()
    layout = Layout.ALIGNED
    panel = Panel.COMPARE
    joinable = False
    common = NAMED
    renames = False

    traces: Annotated[
        Files,
        Arg("Files of moeprobe trace record or trace import, of the same inputs.", metavar="TRACE..."),
    ]
    permutations: Annotated[
        int,
        Arg("Random orders of the inputs that show how well unrelated routing aligns.", low=40, high=100_000),
    ] = Align.permutations

    def check(self) -> None:
        """Raise ``UserError`` where there is nothing to align with."""
        check_two(self.traces, "traces to align")

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the figures by name; they look as for models."""
        return Align().draw(result)

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        return "Aligned routing of two recordings, on held-out inputs"
