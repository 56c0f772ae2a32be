"""The declaration of ``trace prefetch``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Layout
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, MatchedTraces
from moeprobe.probes.router_prefetch import LOADED

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class TracePrefetch(MatchedTraces["Result"]):
    """Which experts come next: do this layer's choices, or the previous token's, predict the next layer's?

    Share of a token's experts among the m experts that are predicted from the layer before, from the previous token,
    or from both, with frequencies fitted on other requests (cross-validated); beside the m busiest experts of other
    requests and an even router. m is k, 2 k and 4 k by default. The layer before is that of the recording, whether
    --layers chooses it or not.

    Example: `moeprobe trace prefetch traces/served.parquet`
    """

    name = "trace prefetch"
    function = "trace_prefetch"
    kind = "prefetch"
    title = "Experts predicted ahead"
    raises = "a trace holds no sequences of tokens that choose"
    work = "moeprobe.recorded.trace_prefetch.measure:Prediction"
    drawn_by = "moeprobe.results.figures.prefetch:draw"
    concluded_by = "moeprobe.recorded.trace_prefetch.sentences:sentences"
    analyses = ("prefetch",)
    headlines = ()
    layout = Layout.PREFETCH
    joinable = False
    common = NAMED
    unit = "requests"

    traces: Annotated[Files, TRACES]
    loaded: Annotated[Sequence[int] | None, LOADED] = None
