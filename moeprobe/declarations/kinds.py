"""What a run folder can hold: the declaration of its names, its measurements, and how they are shown."""

import enum
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeprobe.declarations.headlines import Agreement, AuditEntry, Headline
from moeprobe.inputs.modality import Modality
from moeprobe.runtime.files import display_path

if TYPE_CHECKING:
    from pandas import DataFrame

    from moeprobe.results.sidecars import Sidecar

# What ``--out`` is where figures are all that is written.
OUT_OF_FIGURES = "Folder for the figures and their table; required unless --json."
# How much the routing of two views agrees; each says of which routers.
AGREEMENT = ("match", "set_match", "slot_match", "weights", "churn")


class Layout(enum.Enum):
    """How the result of a probe is printed."""

    SIDE_BY_SIDE = "a column per checkpoint"
    ALONG_SEVERITY = "a line per severity"
    ALL = "a column per checkpoint, with all that was measured"
    FEW_SHOTS = "a line per checkpoint and number of shots"
    BY_VIEW = "a line per checkpoint and variant of its run"
    MEANS = "a line per checkpoint and family of corruptions"
    ALIGNED = "a line per layer and pair of trainings"
    IN_FULL = "sentences, then a column per checkpoint, with all that was measured"
    RECORDED = "recordings side by side, or a line per severity where they are steps of one view"
    SELECTED_KEYS = "a line per layer, on the keys that queries select"
    REUSE = "a line per layer, on reuse along sequences, and on caches of experts"
    PREFETCH = "a line per layer and predictor, on experts that are loaded ahead"
    BATCHES = "a line per layer, on distinct experts of batches, and on experts asleep"
    COVERAGE = "a line per model, data set or recording, on tokens until every expert has enough"
    LOAD_OVER_TIME = "a line per layer, on hot experts and on ranks"
    OVERLAYS = "a line per drawn image"
    PAIRS = "a line per image, on patches with a partner"
    SERVER = "the first sentences of the page"
    TRACES = "the files that were written"

    @property
    def is_table(self) -> bool:
        """Whether the result is a table of values, and no pictures or files."""
        return self not in (Layout.OVERLAYS, Layout.PAIRS, Layout.SERVER, Layout.TRACES)


class Panel(enum.StrEnum):
    """Under which heading ``--help`` and the reference list a command."""

    START = "Start here"
    PROBES = "Probes"
    COMPARE = "Compare and report"
    TRAIN = "Train"
    STRESS = "Stress tests"
    TRACES = "Recorded routing"
    FILES = "Checkpoints of other programs"


def audit_entry(kind: "type[Kind]") -> AuditEntry | None:
    """Return how a kind of run joins an audit; a plug-in may have a field of that name, and does not then."""
    return kind.audit if isinstance(kind.audit, AuditEntry) else None


class Kind:
    """The content of a run folder: its names, what it measures, and how that is shown.

    Attributes:
        name: the command.
        kind: what ``run.json`` calls it; the command, unless two commands ask the same.
        title: heading in reports.
        analyses: computed analyses, by catalog name.
        headlines: leading metrics; the first is the primary number of a run.
        layout: how a result is printed.
        joinable: whether analyses of plug-ins can join it (``Analysis.joins``), as any loop over routing can.
        audit: how it joins ``moeprobe audit``; None = it does not.
        writes: names of files that its runs write beside tables of values and figures, as patterns, by which a folder
            copied without its record is known; those ending in ``/`` are runs in themselves.
        sampled: what intervals are over, and the column ``images`` counts; None = what the models read.
        concluded_by: ``module:function`` that says in sentences what several rows of a table come to; imported when a
            run is shown. Empty = ``conclusions`` says it, or there is nothing to say.
        concluded_with: the same, of a table, its judged differences (or None) and its sidecar; in place of
            ``concluded_by``.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = ""
    title: ClassVar[str]
    analyses: ClassVar[tuple[str, ...]] = ()
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = ()
    layout: ClassVar[Layout] = Layout.SIDE_BY_SIDE
    joinable: ClassVar[bool] = True
    audit: ClassVar[AuditEntry | None] = None
    writes: ClassVar[tuple[str, ...]] = ()
    sampled: ClassVar[Modality | None] = None
    concluded_by: ClassVar[str] = ""
    concluded_with: ClassVar[str] = ""

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return sentences that combine several rows of a table, to be read after the headlines."""
        return resolve(cls.concluded_by)(table) if cls.concluded_by else []

    @classmethod
    def finished_content(cls, folder: Path, sidecar: "Sidecar") -> dict[str, Any]:
        """Return what a run without a table of values printed with ``--json``, from the files of its folder."""
        return {"sidecar": sidecar, "out": str(display_path(folder))}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" in cls.__dict__ and "kind" not in cls.__dict__:
            cls.kind = cls.name


def resolve(reference: str) -> Any:
    """Return what ``module:name`` refers to: so declarations name what imports torch, pandas or them."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
