"""The declaration of ``trace balance``: a probe of one recording, not of checkpoints."""

from moeprobe.probes.base import Kind


class TraceBalance(Kind):
    """Recorded load over time: whether hot experts stay hot, and how evenly a placement loads the ranks."""

    name = "trace balance"
    kind = "trace-balance"
    title = "Load over time and ranks"
    concluded_by = "moeprobe.probes.trace_balance.sentences:sentences"
    analyses = ("hot_experts", "input_experts", "rank_load")
    headlines = ()
    joinable = False
