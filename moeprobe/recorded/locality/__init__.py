"""The declaration of ``trace locality``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Arg, Headline, Layout
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, MatchedTraces
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Locality(MatchedTraces["Result"]):
    """Does the next token use the same experts, and how many of them does a cache find?

    Share of a token's experts that the next token of the sequence has too, with chance from other sequences and from
    other tokens of the same sequence. Hit rates of caches that keep some experts of each layer: LRU, LFU, the busiest
    experts of other requests, and the optimum, beside random eviction and an even router; the size at which 90 % hit;
    bytes and tokens per second. Prompt and generated tokens also apart.

    Example: `moeprobe trace locality traces/served.parquet --bandwidth 25GB/s --expert-bytes 9.4MB`
    """

    name = "trace locality"
    function = "trace_locality"
    kind = "locality"
    title = "Reuse of experts along sequences"
    raises = "a trace holds no sequences of tokens that choose"
    work = "moeprobe.recorded.locality.measure:Reuse"
    splits = True
    drawn_by = "moeprobe.recorded.locality.figure:draw"
    concluded_by = "moeprobe.recorded.locality.sentences:sentences"
    analyses = (
        "next_token",
        "reuse_distance",
        "expert_cache",
        "cache_size",
        "shared_cache",
    )
    headlines = (
        Headline(
            "next_token_reuse",
            companions=(
                ("by chance", ("next_token_reuse_chance", "pooled")),
                ("by tokens of the same sequence", ("next_token_reuse_chance", "sequence")),
            ),
        ),
    )
    layout = Layout.REUSE
    joinable = False
    common = (*NAMED, "unit")
    unit = "requests"

    traces: Annotated[Files, TRACES]
    cache: Annotated[
        Sequence[int] | None,
        Arg(
            "Experts of each layer that caches hold, comma-separated, e.g. 16,32; default shares of all.",
            low=1,
        ),
    ] = None
    batch: Annotated[
        int, Arg("Requests that are served at once and take turns token by token; they share caches.", low=1)
    ] = 1
    bandwidth: Annotated[
        str | None, Arg("Bytes per second from where the other experts are loaded, e.g. 25GB/s.")
    ] = None
    expert_bytes: Annotated[str | None, Arg("Bytes of an expert, e.g. 9.4MB.")] = None
    model_config: Annotated[
        Path | None, Arg("config.json of the model, which says the bytes of an expert instead.")
    ] = None

    def check(self) -> None:
        """Raise ``UserError`` where the bytes of an expert are given twice, or a bandwidth has none."""
        if self.expert_bytes is not None and self.model_config is not None:
            raise UserError(
                f"{option('expert_bytes')} says how large an expert is; leave {option('model_config')} out."
            )
        if self.bandwidth is not None and self.expert_bytes is None and self.model_config is None:
            raise UserError(
                f"{option('bandwidth')} needs the size of an expert; add {option('expert_bytes', '9.4MB')} or "
                f"{option('model_config', 'config.json')}."
            )
