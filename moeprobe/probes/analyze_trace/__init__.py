"""The declaration of ``trace analyze``: a probe of files, not of checkpoints."""

from moeprobe.probes.base import AGREEMENT, Agreement, AuditEntry, Headline, Kind, Layout, Property


class AnalyzeTrace(Kind):
    """Confidence, load and match of recorded routing, without the model."""

    name = "trace analyze"
    kind = "analyze-trace"
    title = "Recorded routing"
    concluded_by = "moeprobe.probes.analyze_trace.sentences:sentences"
    analyses = (
        *AGREEMENT,
        "confidence",
        "selection",
        "load",
        "unserved",
        "dropped",
        "experts_per_token",
        "disagreement",
        "touched",
        "first_layer",
        "unshared",
    )
    headlines = (Agreement(at="strongest"),)
    layout = Layout.OWN
    audit = AuditEntry(
        order=0,
        properties=(
            Property(
                "recorded",
                "Agreement with the first recording",
                (Agreement(at="strongest"),),
                "recordings",
                advice={
                    "they disagree": "Check that both are of one model, and for shifts of layers or positions.",
                    "they agree in part": "Look in which layer and at which position the tokens first differ.",
                },
                command="moeprobe trace check {second} --against {first}",
                compared=False,
            ),
            Property(
                "dead",
                "Dead experts",
                (Headline("dead_experts"),),
                "dead",
                command="moeprobe trace analyze {models} --full",
            ),
            Property(
                "load",
                "Load",
                (Headline("load_entropy"),),
                "load",
                command="moeprobe trace analyze {models} --full",
            ),
            Property(
                "confidence",
                "Confidence",
                (Headline("gate_highest"),),
                "confidence",
                command="moeprobe trace analyze {models} --full",
            ),
        ),
    )
