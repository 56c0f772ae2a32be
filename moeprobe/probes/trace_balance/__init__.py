"""The declaration of ``trace balance``: a probe of one recording, not of checkpoints."""

from typing import TYPE_CHECKING

from moeprobe.probes.base import Kind

if TYPE_CHECKING:
    from pandas import DataFrame


class TraceBalance(Kind):
    """Recorded load over time: whether hot experts stay hot, and how evenly a placement loads the ranks."""

    name = "trace balance"
    kind = "trace-balance"
    title = "Load over time and ranks"
    analyses = ("hot_experts", "rank_load")
    headlines = ()
    joinable = False

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return whether hot experts stay hot, how uneven ranks are, and what a greedy placement would give."""
        from moeprobe.probes.trace_balance.sentences import sentences

        return sentences(table)
