"""The declaration of ``trace batches``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Layout
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, MatchedTraces

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class TraceBatches(MatchedTraces["Result"]):
    """How many experts do T tokens use, and which experts sleep through a whole request?

    Distinct experts of 1, 2, 4, ... 4,096 consecutive tokens of a request, beside tokens of as many requests, which
    choose independently with the same loads, and an even router. Experts that a request never uses while others do,
    beside independent tokens; and for each expert the share of requests in which it sleeps.

    Example: `moeprobe trace batches traces/served.parquet`
    """

    name = "trace batches"
    function = "trace_batches"
    kind = "batches"
    title = "Distinct experts of batches"
    raises = "a trace holds no sequences of tokens that choose"
    work = "moeprobe.recorded.trace_batches.measure:TokenWindows"
    drawn_by = "moeprobe.recorded.trace_batches.figure:draw"
    concluded_by = "moeprobe.recorded.trace_batches.sentences:sentences"
    analyses = ("distinct_experts", "asleep")
    headlines = ()
    layout = Layout.BATCHES
    joinable = False
    common = NAMED
    unit = "requests"

    traces: Annotated[Files, TRACES]
