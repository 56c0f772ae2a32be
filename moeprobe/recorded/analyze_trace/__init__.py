"""The declaration of ``trace analyze``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import AGREEMENT, Agreement, Arg, AuditEntry, Headline, Layout, Property
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, MatchedTraces

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class AnalyzeTrace(MatchedTraces["Result"]):
    """Confidence, load and match of recorded routing, without the model.

    Each trace but the first is compared with the first, input by input and token by token.

    Example: `moeprobe trace analyze traces/demo-prc/clean.parquet traces/demo-prc/gaussian_noise-0.1.parquet`
    """

    name = "trace analyze"
    function = "analyze_trace"
    kind = "analyze-trace"
    title = "Recorded routing"
    work = "moeprobe.recorded.analyze_trace.measure:TraceAnalysis"
    splits = True
    drawn_by = "moeprobe.recorded.analyze_trace.figure:figures_of"
    common = (*NAMED, "unit")
    concluded_by = "moeprobe.recorded.analyze_trace.sentences:sentences"
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
    layout = Layout.RECORDED
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

    traces: Annotated[Files, TRACES]
    expert_map: Annotated[
        Path | None,
        Arg(
            "JSON map from the first trace's experts to the other traces' experts (null = removed), for a pruned or "
            "merged model."
        ),
    ] = None
