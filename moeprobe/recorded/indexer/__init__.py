"""The declaration of ``trace indexer``: a question to two files of responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from moeprobe.declarations import Arg, Layout
from moeprobe.declarations.recording_probe import SEED_OF_INTERVALS, RecordingProbe

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Indexer(RecordingProbe["Result"]):
    """Do two captures of a sparse-attention indexer (DeepSeek-V3.2, V4, GLM-5) select the same keys?

    Overlap of the keys that each query selects, per layer and by position, corrected for chance, with intervals over
    requests. Chance depends on how many keys the query sees.

    Captures with physical slots, shifted or truncated rows, or duplicates are refused.

    Example: `moeprobe trace indexer served.jsonl trainer.jsonl --model-config config.json`
    """

    name = "trace indexer"
    function = "indexer"
    kind = "indexer"
    title = "Selected keys of sparse-attention indexers"
    raises = "a file is not as documented, or its selections are not of an indexer"
    work = "moeprobe.recorded.indexer.measure:Captures"
    drawn_by = "moeprobe.recorded.indexer.figure:draw"
    concluded_by = "moeprobe.recorded.indexer.sentences:sentences"
    analyses = ("indexer",)
    headlines = ()
    layout = Layout.SELECTED_KEYS
    joinable = False
    recordings = ()
    unit = "requests"
    option_help: ClassVar[Mapping[str, str]] = {
        "layers": "Layers with sparse attention, comma-separated, e.g. layers.3; default all.",
        "seed": SEED_OF_INTERVALS,
    }

    first: Annotated[
        str | Path,
        Arg(
            "Responses of a server with indexer_topk; the reference of the comparison.", metavar="FIRST.jsonl"
        ),
    ]
    second: Annotated[
        str | Path,
        Arg("Responses to the same requests, matched by their ids.", metavar="SECOND.jsonl"),
    ]
    model_config: Annotated[
        Path, Arg("config.json of the model: index_topk, and which layers have an indexer.")
    ]
    start: Annotated[
        int | None,
        Arg(
            "Position of each sequence's first row, if the server was asked to leave out leading rows.", low=0
        ),
    ] = None
