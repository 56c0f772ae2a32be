"""The declaration of ``trace mismatch``: a probe of one language model and what a server recorded."""

from typing import TYPE_CHECKING, ClassVar

from moeprobe.probes.base import Agreement, Headline, Kind

if TYPE_CHECKING:
    from pandas import DataFrame


class Mismatch(Kind):
    """Log-probabilities of a server against a model's own, and against the model with the server's routing."""

    name: ClassVar[str] = "trace mismatch"
    kind: ClassVar[str] = "mismatch"
    title: ClassVar[str] = "Log-probabilities of a server and of the model"
    analyses: ClassVar[tuple[str, ...]] = ("mismatch",)
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = ()
    joinable: ClassVar[bool] = False

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return how large the mismatch is, and how much of it goes with the server's routing."""
        from moeprobe.probes.mismatch.sentences import sentences

        return sentences(table)
