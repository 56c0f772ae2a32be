"""The declaration of ``trace locality``: a probe of recorded sequences, not of checkpoints."""

from moeprobe.probes.base import Headline, Kind


class Locality(Kind):
    """Reuse of experts by the next tokens of recorded sequences, and how many experts several tokens touch."""

    name = "trace locality"
    kind = "locality"
    title = "Reuse of experts along sequences"
    concluded_by = "moeprobe.probes.locality.sentences:sentences"
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
    joinable = False
