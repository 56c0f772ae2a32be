"""The declaration of ``analyze-trace``: a probe of files, not of checkpoints."""

from typing import TYPE_CHECKING, ClassVar

from moeprobe.probes.base import AGREEMENT, Agreement, Headline, Kind, Layout

if TYPE_CHECKING:
    from pandas import DataFrame


class AnalyzeTrace(Kind):
    """Confidence, load and match of recorded routing, without the model."""

    name: ClassVar[str] = "analyze-trace"
    title: ClassVar[str] = "Recorded routing"
    analyses: ClassVar[tuple[str, ...]] = (
        *AGREEMENT,
        "confidence",
        "load",
        "unserved",
        "dropped",
        "experts_per_token",
        "disagreement",
        "touched",
        "first_layer",
        "unshared",
    )
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = (Agreement(at="strongest"),)
    layout: ClassVar[Layout] = Layout.OWN

    @classmethod
    def says(cls, table: "DataFrame") -> list[str]:
        """Return how much of the routing of sequences differs, and where it begins."""
        from moeprobe.probes.analyze_trace.sentences import sentences

        return sentences(table)
