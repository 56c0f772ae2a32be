"""The declaration of ``trace balance``: a probe of one recording, not of checkpoints."""

from typing import TYPE_CHECKING, ClassVar

from moeprobe.probes.base import Agreement, Headline, Kind

if TYPE_CHECKING:
    from pandas import DataFrame


class TraceBalance(Kind):
    """Recorded load over time: whether hot experts stay hot, and how evenly a placement loads the ranks."""

    name: ClassVar[str] = "trace balance"
    kind: ClassVar[str] = "trace-balance"
    title: ClassVar[str] = "Load over time and ranks"
    analyses: ClassVar[tuple[str, ...]] = ("hot_experts", "rank_load")
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = ()
    joinable: ClassVar[bool] = False

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return whether hot experts stay hot, how uneven ranks are, and what a greedy placement would give."""
        from moeprobe.probes.trace_balance.sentences import sentences

        return sentences(table)
