"""The declaration of ``trace locality``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Headline, Layout
from moeprobe.declarations.recording_probe import NAMED, TRACES, Files, MatchedTraces

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Locality(MatchedTraces["Result"]):
    """Does the next token use the same experts, and how many experts does a batch of tokens touch?

    Share of a token's experts that the next token of the sequence has too, with chance from other sequences and from
    other tokens of the same sequence; share of the choices whose expert the last 1 to 16 tokens used; and distinct
    experts of 1, 2, 4, ... consecutive tokens, beside independent tokens. Prompt and generated tokens also apart.

    Example: `moeprobe trace locality traces/served.parquet`
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
    analyses = ("next_token", "distinct_experts")
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
