"""The work of ``trace analyze``: each trace by itself, and each but the first compared with the first.

The analyses are shared with the probes and fed with the same records, so the numbers are the same.
"""

from typing import Any

from moeprobe.errors import UserError
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.recorded.engine.describe import ignored_tokens, notes_of
from moeprobe.recorded.engine.layout import leading_sentences_of
from moeprobe.recorded.engine.paired_sums import PairedSums
from moeprobe.recorded.engine.work import TracesWork
from moeprobe.recordings.expert_map import ExpertMap, read_expert_map
from moeprobe.results.folder import Result
from moeprobe.results.stored import SumsStore
from moeprobe.runtime.files import sha256
from moeprobe.runtime.progress import Progress


class TraceAnalysis(TracesWork[AnalyzeTrace]):
    """Traces that may have other experts than the first, as a map says."""

    expert_map: ExpertMap | None = None

    @property
    def mapped(self) -> bool:  # type: ignore[override]
        """Whether layers may have other numbers of experts in the traces."""
        return self.probe.expert_map is not None

    def changed_request(self) -> dict[str, Any]:
        """Return the map of experts, with which some tokens are left out."""
        if self.probe.expert_map is None:
            return {"analyses": [name for name in self.probe.analyses if name != "unshared"]}
        first, *compared = (trace_view.trace for trace_view in self.traces)
        self.expert_map = read_expert_map(self.probe.expert_map, first, compared, self.layers)
        return {"expert_map": sha256(self.expert_map.path)}

    def measure(self, progress: Progress) -> tuple[SumsStore, list[str]]:
        """Return the sums per input, and phrases on the tokens that were left out."""
        paired = PairedSums(
            self.traces, self.layers, self.ids, analyses=self.probe.analyses, expert_map=self.expert_map
        )
        sums = paired.sums(progress, self.division)
        if sums.num_rows == 0 and self.division.shard is None:
            raise UserError(
                f"Nothing can be said of {', '.join(self.layers)} of {self.traces[0].trace.path}: there is one expert, "
                "or no choices and no gates are recorded."
            )
        return sums, ignored_tokens(self.traces, paired.left_out)

    def notes(self) -> list[str]:
        """Return sentences on numbers that are missing or partial."""
        return notes_of(self.traces, self.layers, self.ids, expert_map=self.expert_map)

    def leading(self, result: Result) -> list[str]:
        """Return the sentences that a result begins with: traces side by side, or along a severity."""
        return leading_sentences_of(result)
