"""The declaration of ``trace balance``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Arg, Layout
from moeprobe.declarations.recording_probe import RecordingProbe
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class TraceBalance(RecordingProbe["Result"]):
    """Do hot experts stay hot over time, and is the load of expert-parallel ranks even?

    Overlap of the hot experts (the eighth with the most choices) of one window of requests and the next, with chance
    and the overlap of shuffled requests. With --ranks or --placement also the load of the busiest rank over the
    mean, also for a greedy placement, made on the first half of the requests and judged on the second. With --every
    200, also whether the load has moved since the first batches, looked at again after each.

    Example: `moeprobe trace balance traces/served.parquet --ranks 8`
    """

    name = "trace balance"
    kind = "trace-balance"
    title = "Load over time and ranks"
    raises = (
        "the trace has too few requests or no choices of tokens, or the ranks or the placement do not fit"
    )
    work = "moeprobe.recorded.trace_balance.measure:LoadOverTime"
    drawn_by = "moeprobe.recorded.trace_balance.figure:draw"
    concluded_by = "moeprobe.recorded.trace_balance.sentences:sentences"
    analyses = ("hot_experts", "input_experts", "rank_load")
    headlines = ()
    layout = Layout.LOAD_OVER_TIME
    joinable = False
    recordings = ("trace",)
    splits = True
    unit = "requests"

    trace: Annotated[
        str | Path,
        Arg(
            "File of moeprobe trace record or trace import, or a folder of its parts.",
            metavar="TRACE.parquet",
        ),
    ]
    ranks: Annotated[
        int | None, Arg("Ranks of expert parallelism, each with as many consecutive experts.", low=1)
    ] = None
    placement: Annotated[
        Path | None,
        Arg(
            "Experts of each rank instead: JSON list of lists, the same by layer, an expert map of vllm-ascend, "
            "or CSV expert,rank."
        ),
    ] = None
    windows: Annotated[int, Arg("Windows of requests that follow one another in the file.", low=2)] = 8
    every: Annotated[
        int | None,
        Arg(
            "Also say after each batch of so many requests, e.g. 200, whether the load has moved since the baseline; "
            "the interval holds however often you look.",
            low=1,
        ),
    ] = None
    periods: Annotated[
        Path | None,
        Arg(
            "Batches by a CSV with the columns image_id and unit (e.g. the hour of each request), in place of --every. "
            "Periods should be complete: the last one counts as much as any other."
        ),
    ] = None
    baseline: Annotated[
        int, Arg("Batches at the beginning that set the usual load, with --every or --periods.", low=6)
    ] = 20

    def check(self) -> None:
        """Raise ``UserError`` where the number of ranks is said twice."""
        if self.ranks is not None and self.placement is not None:
            raise UserError(
                f"{option('placement')} says how many ranks there are; leave {option('ranks')} out."
            )
        if self.every is not None and self.periods is not None:
            raise UserError(
                f"{option('periods')} says which requests are a batch; leave {option('every')} out."
            )
