"""The declaration of ``coverage``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Arg, Layout
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, RecordingProbe

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Coverage(RecordingProbe["Result"]):
    """How many tokens of calibration data until every expert of every layer has enough of them?

    For GPTQ, AWQ or NVFP4: the share of experts with n tokens over the tokens of a recording, in random orders of its
    requests, beside an even router (coupon collector); the experts that never get n; which of several recordings covers
    most with as many tokens; and a small subset of requests that is enough.

    Example: `moeprobe coverage traces/calibration.parquet --need 128 --write subset.jsonl`
    """

    name = "coverage"
    kind = "coverage"
    title = "Coverage of experts by data"
    raises = "a trace holds no tokens that choose"
    work = "moeprobe.recorded.coverage.measure:Accumulation"
    drawn_by = "moeprobe.recorded.coverage.figure:draw"
    concluded_by = "moeprobe.recorded.coverage.sentences:sentences"
    analyses = ("expert_coverage",)
    headlines = ()
    layout = Layout.COVERAGE
    joinable = False
    common = NAMED
    unit = "requests"

    traces: Annotated[Files, TRACES]
    need: Annotated[int, Arg("Tokens n that every expert of every layer should have.", low=1)] = 128
    write: Annotated[
        Path | None,
        Arg(
            "JSON lines to write the ids of a small subset into, in which every expert has n tokens.",
            in_request=False,
        ),
    ] = None
