"""The declaration of ``trace drift``: a probe of files, not of checkpoints."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeprobe.probes.base import AGREEMENT, Kind, Layout

if TYPE_CHECKING:
    from pandas import DataFrame


class Drift(Kind):
    """Recorded routing of a training's checkpoints, each against the first and against the last."""

    name = "trace drift"
    kind = "drift"
    title = "Drift of routing"
    analyses = (*AGREEMENT, "disagreement", "touched", "first_layer")
    headlines = ()
    layout = Layout.BY_VIEW

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the compared traces."""
        return "Routing of each checkpoint, against the first and against the last"

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return how far routing moved from the first to the last, and when half of it was done."""
        from moeprobe.probes.drift.sentences import sentences

        return sentences(table)
