"""The declaration of ``trace coverage``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Layout
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, RecordingProbe
from moeprobe.probes.coverage import ENOUGH, NEED, WRITE

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class TraceCoverage(RecordingProbe["Result"]):
    """How many recorded tokens until every expert of every layer has enough of them?

    For GPTQ, AWQ or NVFP4: the share of experts with n tokens over the tokens of a recording, in random orders of its
    requests, beside an even router (coupon collector); the experts that never get n; which of several recordings covers
    most with as many tokens; and a small subset of requests that is enough.

    Example: `moeprobe trace coverage traces/calibration.parquet --need 128 --write subset.jsonl`
    """

    name = "trace coverage"
    function = "trace_coverage"
    kind = "trace-coverage"
    title = "Coverage of experts by recorded tokens"
    raises = "a trace holds no tokens that choose"
    work = "moeprobe.recorded.trace_coverage.measure:Accumulation"
    drawn_by = "moeprobe.probes.coverage.figure:draw"
    concluded_by = "moeprobe.probes.coverage.sentences:sentences"
    analyses = ("expert_coverage",)
    headlines = ()
    layout = Layout.COVERAGE
    joinable = False
    common = NAMED
    unit = "requests"
    written = ("write",)

    traces: Annotated[Files, TRACES]
    need: Annotated[int, NEED] = ENOUGH
    write: Annotated[Path | None, WRITE] = None
