"""The declaration of ``trace drift``: a probe of files, not of checkpoints."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from moeprobe.probes.base import AGREEMENT, Agreement, Headline, Kind, Layout

if TYPE_CHECKING:
    from pandas import DataFrame


class Drift(Kind):
    """Recorded routing of a training's checkpoints, each against the first and against the last."""

    name: ClassVar[str] = "trace drift"
    kind: ClassVar[str] = "drift"
    title: ClassVar[str] = "Drift of routing"
    analyses: ClassVar[tuple[str, ...]] = (*AGREEMENT, "disagreement", "touched", "first_layer")
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = ()
    layout: ClassVar[Layout] = Layout.BY_VIEW

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the compared traces."""
        return "Routing of each checkpoint, against the first and against the last"

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return how far routing moved from the first to the last, and when half of it was done."""
        from moeprobe.probes.drift.sentences import sentences

        return sentences(table)
