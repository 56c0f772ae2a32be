"""The declaration of ``analyze-trace``: a probe of files, not of checkpoints."""

from typing import ClassVar

from moeprobe.probes.base import AGREEMENT, Agreement, Headline, Kind, Layout


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
    )
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = (Agreement(at="strongest"),)
    layout: ClassVar[Layout] = Layout.OWN
