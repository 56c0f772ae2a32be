"""The declaration of ``trace indexer``: a probe of two files of responses, not of checkpoints."""

from typing import TYPE_CHECKING

from moeprobe.probes.base import Kind

if TYPE_CHECKING:
    from pandas import DataFrame


class Indexer(Kind):
    """The keys that sparse-attention indexers select in one capture, against another capture of the same requests."""

    name = "trace indexer"
    kind = "indexer"
    title = "Selected keys of sparse-attention indexers"
    analyses = ("indexer",)
    headlines = ()
    joinable = False

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return how far the captures agree over all layers, in which layer least, and at which positions."""
        from moeprobe.probes.indexer.sentences import sentences

        return sentences(table)
