"""The declaration of a question to recordings: files of a server, or of ``trace record``."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, TypeVar

from moeprobe.declarations.fields import Arg
from moeprobe.declarations.kinds import Panel, resolve
from moeprobe.declarations.question import StandaloneQuestion
from moeprobe.errors import UserError
from moeprobe.runtime.arguments import several

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result

R = TypeVar("R")
Files = Sequence[str | Path]
# How inputs of two files belong together.
NAMES, TOKENS = "names", "tokens"
SEED_OF_INTERVALS = "Seed of the intervals."
# Common options of what is written into a folder, and of recordings that can be called by names.
WRITING = ("seed", "out", "overwrite", "figures", "svg", "command")
NAMED = ("layers", "names", *WRITING)
UNIT_OF_REQUESTS = (
    "What was sampled, if not requests: prompt (by its tokens), or a CSV with the columns image_id and unit (e.g. "
    "hour); intervals and verdicts count units."
)
IMAGES = "Folder with the pictures of --tokens: REQUEST.png, or REQUEST/ with several, in the order of their names."
TRACES = Arg(
    "Files of moeprobe trace record or trace import, or folders of parts; the first is the reference.",
    metavar="TRACE...",
)


@dataclass(frozen=True, kw_only=True)
class RecordingProbe(StandaloneQuestion[R], ABC, Generic[R]):
    """A question to recordings: its fields name the files and say the rest; ``R`` is what it returns.

    Attributes:
        recordings: the fields that name traces.
        drawn_by: ``module:function`` that draws a result.

    Raises:
        UserError: a field has a value of another type, or out of range, or no file is named.
    """

    panel: ClassVar[Panel] = Panel.TRACES
    option_help: ClassVar[Mapping[str, str]] = {
        "layers": "MoE layers, comma-separated, e.g. layers.3; default all.",
        "seed": SEED_OF_INTERVALS,
        "unit": UNIT_OF_REQUESTS,
    }
    common: ClassVar[tuple[str, ...] | None] = ("layers", *WRITING)
    recordings: ClassVar[tuple[str, ...]] = ("traces",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(several(getattr(self, name)) for name in self.recordings):
            raise UserError("Name at least one trace.")

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the figures of a result by name."""
        return resolve(self.drawn_by)(result)


@dataclass(frozen=True, kw_only=True)
class MatchedTraces(RecordingProbe[R], Generic[R]):
    """A question to several recordings, whose inputs belong together by their names or by their tokens."""

    match: Annotated[
        str,
        Arg(
            "How inputs of two files belong together: names, or tokens where the names differ and token ids are known.",
            words=(NAMES, TOKENS),
        ),
    ] = NAMES

    def matching(self) -> dict[str, str]:
        """Return the entry of a request on how inputs are matched; none where it is by their names, as usual."""
        return {} if self.match == NAMES else {"match": self.match}
