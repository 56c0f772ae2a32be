"""The declaration of ``trace indexer``: a probe of two files of responses, not of checkpoints."""

from moeprobe.probes.base import Kind


class Indexer(Kind):
    """The keys that sparse-attention indexers select in one capture, against another capture of the same requests."""

    name = "trace indexer"
    kind = "indexer"
    title = "Selected keys of sparse-attention indexers"
    concluded_by = "moeprobe.probes.indexer.sentences:sentences"
    analyses = ("indexer",)
    headlines = ()
    joinable = False
