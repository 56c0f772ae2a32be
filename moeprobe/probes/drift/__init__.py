"""The declaration of ``trace drift``: a probe of files, not of checkpoints."""

from moeprobe.probes.base import AGREEMENT, Kind, Layout

# At least two are needed.
STEPS = "traces: of the first and of the last checkpoint"


class Drift(Kind):
    """Recorded routing of a training's checkpoints, each against the first and against the last."""

    name = "trace drift"
    kind = "drift"
    title = "Drift of routing"
    concluded_by = "moeprobe.probes.drift.sentences:sentences"
    analyses = (*AGREEMENT, "disagreement", "touched", "first_layer")
    headlines = ()
    layout = Layout.BY_VIEW
