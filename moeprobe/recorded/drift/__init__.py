"""The declaration of ``trace drift``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import AGREEMENT, Arg, Layout
from moeprobe.declarations.recording_probe import WRITING, Files, MatchedTraces
from moeprobe.runtime.arguments import check_two

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Drift(MatchedTraces["Result"]):
    """How far does routing move during training? Each recorded checkpoint against the first and the last.

    Agreement with κ and intervals in each layer, for checkpoints of one model on the same inputs. The steps of the
    training are the numbers in the names of the files, where these grow.

    Example: `moeprobe trace drift traces/step-0/clean.parquet traces/step-100/clean.parquet
    traces/step-200/clean.parquet`
    """

    name = "trace drift"
    function = "drift"
    kind = "drift"
    title = "Drift of routing"
    work = "moeprobe.recorded.drift.measure:Series"
    splits = True
    drawn_by = "moeprobe.recorded.drift.figure:draw"
    concluded_by = "moeprobe.recorded.drift.sentences:sentences"
    analyses = (*AGREEMENT, "disagreement", "touched", "first_layer")
    headlines = ()
    layout = Layout.BY_VIEW
    common = ("layers", "unit", *WRITING)

    traces: Annotated[
        Files,
        Arg(
            "Files of moeprobe trace record or import, one per checkpoint, in the order of the training.",
            metavar="TRACE...",
        ),
    ]

    def check(self) -> None:
        """Raise ``UserError`` where there is no way from a first to a last checkpoint."""
        check_two(self.traces, "traces: of the first and of the last checkpoint")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the table."""
        return "Drift of recorded routing"
