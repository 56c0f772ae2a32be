"""The declaration of ``trace indexer``: a probe of two files of responses, not of checkpoints."""

from typing import TYPE_CHECKING, ClassVar

from moeprobe.probes.base import Agreement, Headline, Kind

if TYPE_CHECKING:
    from pandas import DataFrame


class Indexer(Kind):
    """The keys that sparse-attention indexers select in one capture, against another capture of the same requests."""

    name: ClassVar[str] = "trace indexer"
    kind: ClassVar[str] = "indexer"
    title: ClassVar[str] = "Selected keys of sparse-attention indexers"
    analyses: ClassVar[tuple[str, ...]] = ("indexer",)
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = ()
    joinable: ClassVar[bool] = False

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return how far the captures agree over all layers, in which layer least, and at which positions."""
        from moeprobe.probes.indexer.sentences import sentences

        return sentences(table)
