"""The declaration of a probe, read by everything that names, runs, draws or prints it.

Nothing here, and nothing in a declaration, imports torch, pandas or matplotlib: ``--help`` and reports are made of it.
"""

import dataclasses
import enum
import functools
import importlib
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_type_hints

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import Modality
from moeprobe.judging.declared import (  # plug-ins import them from here  # noqa: F401
    CLEAN,
    Agreement,
    AuditEntry,
    Headline,
    Property,
    Rule,
)
from moeprobe.runtime import arguments

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from moeprobe.adapters.base import Checkpoint
    from moeprobe.probes.engine.options import Options
    from moeprobe.probes.engine.run import ProbeWork
    from moeprobe.results.folder import Result

R = TypeVar("R")
NONE: Mapping[str, Any] = MappingProxyType({})
# What ``--out`` is where figures are all that is written.
OUT_OF_FIGURES = "Folder for the figures and their table; required unless --json."
# How much the routing of two views agrees; each says of which routers.
AGREEMENT = ("match", "set_match", "slot_match", "weights", "churn")


@dataclass(frozen=True)
class Arg:
    """How a field of a probe, or of ``Options``, is typed on the command line.

    Attributes:
        help: one sentence.
        flag: its option; empty = the field's name. Of a list that is ``--file``, each value has the option again;
            other lists are separated by commas.
        choices: words that are typed for values; None = the value itself.
        in_request: whether the numbers of a run depend on it and nothing else in the request says so.
        of_figures: whether figures depend on it, and no number does.
    """

    help: str
    flag: str = ""
    choices: Mapping[str, Any] | None = None
    in_request: bool = True
    of_figures: bool = False


class Views(enum.Enum):
    """What a probe perturbs."""

    NONE = "clean inputs alone"
    PAIRS = "two random views of an input"
    SEVERITIES = "a view with a severity, against the clean input"
    ANY = "either, or none"


class Layout(enum.Enum):
    """How the result of a probe is printed."""

    SIDE_BY_SIDE = "a column per checkpoint"
    ALONG_SEVERITY = "a line per severity"
    ALL = "a column per checkpoint, with all that was measured"
    FEW_SHOTS = "a line per checkpoint and number of shots"
    BY_VIEW = "a line per checkpoint and variant of its run"
    MEANS = "a line per checkpoint and family of corruptions"
    ALIGNED = "a line per layer and pair of trainings"
    OVERLAYS = "a line per drawn image"
    TRACES = "the files that were written"
    OWN = "by a command of its own"


class Panel(enum.StrEnum):
    """Under which heading ``--help`` and the reference list a command."""

    START = "Start here"
    PROBES = "Probes"
    COMPARE = "Compare and report"
    TRAIN = "Train"
    STRESS = "Stress tests"
    TRACES = "Recorded routing"
    FILES = "Checkpoints of other programs"


def panel_of(kind: "type[Probe[Any]]") -> Panel:
    """Return the heading of a probe; a plug-in's, which may have a field of that name, is among the probes."""
    return kind.panel if isinstance(kind.panel, Panel) else Panel.PROBES


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
        sampled: what intervals are over, and the column ``images`` counts; None = what the models read.
        concluded_by: ``module:function`` that says in sentences what several rows of a table come to; imported when a
            run is shown. Empty = ``conclusions`` says it, or there is nothing to say.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = ""
    title: ClassVar[str]
    analyses: ClassVar[tuple[str, ...]] = ()
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = ()
    layout: ClassVar[Layout] = Layout.SIDE_BY_SIDE
    joinable: ClassVar[bool] = True
    audit: ClassVar[AuditEntry | None] = None
    sampled: ClassVar[Modality | None] = None
    concluded_by: ClassVar[str] = ""

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return sentences that combine several rows of a table, to be read after the headlines."""
        return resolve(cls.concluded_by)(table) if cls.concluded_by else []

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" in cls.__dict__ and "kind" not in cls.__dict__:
            cls.kind = cls.name


@dataclass(frozen=True, kw_only=True)
class Probe(Kind, ABC, Generic[R]):
    """A question to checkpoints: its fields are its parameters, its docstring is the help; ``R`` is what it returns.

    A plain loop over images needs no more than its analyses; what measures otherwise names its ``work``.

    Attributes:
        panel: under which heading commands list it.
        views: what it perturbs; a field ``view`` says how, a field ``severities`` how far.
        needs_routing: whether dense models, which have no MoE layer, are refused.
        labels_required: whether data without the model's classes are refused.
        optional: analyses that are left out where no model has scores.
        leaves_out: whether it can do without single inputs whose gates or scores are not finite.
        noise_floor: whether clean images are run again unchanged.
        refuses_precision: why its passes are in float32 alone, as the end of a sentence; empty = they need not be.
        compares: whether ``compare`` can measure checkpoints by it.
        timed: whether its images per second are read, so that they are measured with care.
        needs_folder: what an output folder is for, where nothing is done without one; empty = it may be left out.
        printed: whether there is something to read on the screen without a folder.
        defaults: common options where it has others than ``Options``.
        option_help: sentences about common options that mean something else here.
        ends_with: the step after the forward passes that a plan counts.
        at_least: whether there are more passes than are known beforehand.
        resumes: whether an interrupted run resumes where it stopped.
        splits: whether it can be measured in shards.
        colorless: figures in which checkpoints have no colors, and which ``draw`` does not make.
        work: ``module:class`` of what ``prepare`` returns, a ``Measurement``; imported when a run begins.
        drawn_by: ``module:function`` that draws a table in the ``colors`` of its checkpoints; imported when a run is
            drawn. Empty = ``draw`` does it, or there are no figures.

    Raises:
        UserError: a field has a value of another type, or out of range.
    """

    panel: ClassVar[Panel] = Panel.PROBES
    views: ClassVar[Views] = Views.NONE
    needs_routing: ClassVar[bool] = True
    labels_required: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()
    leaves_out: ClassVar[bool] = True
    noise_floor: ClassVar[bool] = False
    refuses_precision: ClassVar[str] = ""
    compares: ClassVar[bool] = True
    timed: ClassVar[bool] = False
    needs_folder: ClassVar[str] = ""
    printed: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = NONE
    option_help: ClassVar[Mapping[str, str]] = NONE
    ends_with: ClassVar[str] = "the statistics"
    at_least: ClassVar[bool] = False
    resumes: ClassVar[bool] = True
    splits: ClassVar[bool] = True
    colorless: ClassVar[tuple[str, ...]] = ()
    work: ClassVar[str] = "moeprobe.probes.engine.measurement:Measurement"
    drawn_by: ClassVar[str] = ""

    def __new__(cls, *_: Any, **named: Any) -> Self:
        """Refuse keywords that are no field; the constructor of each probe is made later than this class."""
        arguments.check_keywords(cls.__name__, arguments.signature_of(cls), named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, annotation in fields_of(type(self)).items():
            flag = flag_of(type(self), name)
            value = arguments.read(name, annotation, getattr(self, name), flag=flag)
            object.__setattr__(self, name, value)
        self.check()

    @classmethod
    def with_fields(cls, values: Mapping[str, Any]) -> Self:
        """Return the probe with some of its fields by name; None = not given.

        Raises:
            UserError: it has no such field, one must be named, or a value does not fit.
        """
        chosen = {name: value for name, value in values.items() if value is not None}
        for name in chosen:
            if name not in fields_of(cls):
                raise UserError(f"{cls.name} has no choice of {name}; leave {option(name)} out.")
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in chosen:
                example = option(field.name, "affine", f"{flag_of(cls, field.name)} affine")
                raise UserError(f"Name the {field.name} of the {cls.name}, e.g. {example}.")
        return cls(**chosen)

    def check(self) -> None:
        """Raise ``UserError`` where a field is out of range."""

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where common options do not suit, before anything is loaded."""

    def check_models(self, models: Sequence[Any]) -> None:
        """Raise ``UserError`` where there are too few models, before any is loaded."""

    def check_data(self, kind: type, data: str) -> None:
        """Raise ``UserError`` where a data set of this class, named ``data``, does not suit, before it is opened."""

    def prepare(self, models: Sequence["Checkpoint"], data: str | None, options: "Options") -> "ProbeWork[R]":
        """Return the work, with all checked that can be checked before it is done; raises ``UserError``."""
        return resolve(self.work)(self, models, data, options)

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the printed tables of a run."""
        return self.title

    def draw(self, result: "Result") -> dict[str, "Figure"]:
        """Return the figures of a result by name."""
        return resolve(self.drawn_by)(result.table, colors=result.sidecar.colors) if self.drawn_by else {}

    def request(self) -> dict[str, Any]:
        """Return the fields that the numbers depend on, and under ``figures`` the changed options of figures."""
        names = (name for name in fields_of(type(self)) if arg_of(type(self), name).in_request)
        # Only where they differ, so that earlier runs with the usual figures still ask the same.
        figures = {
            field.name: value
            for field in dataclasses.fields(self)
            if arg_of(type(self), field.name).of_figures
            # As JSON: the command line gives a list where the default is a tuple.
            and (value := plain(getattr(self, field.name))) != plain(field.default)
        }
        return {name: plain(getattr(self, name)) for name in names} | (
            {"figures": figures} if figures else {}
        )


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, str | int | float | None):
        return value
    return [plain(one) for one in value] if isinstance(value, Sequence) else str(value)


def fields_of(kind: type) -> dict[str, Any]:
    """Return the fields of a probe, or of ``Options``, in their order: name -> annotation without its ``Arg``."""
    return {name: hint.__origin__ if _args(hint) else hint for name, hint in _hints(kind).items()}


def arg_of(kind: type, name: str) -> Arg:
    """Return how a field is typed on the command line; one that is not declared has no sentence."""
    return next(iter(_args(_hints(kind)[name])), Arg(""))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    # Once per class: an annotation in quotes is evaluated, for every field of every base.
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _args(hint: Any) -> list[Arg]:
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Arg)]


def flag_of(kind: type, name: str) -> str:
    """Return the option of a field, e.g. ``--group-images``."""
    return arg_of(kind, name).flag or f"--{name.replace('_', '-')}"


def resolve(reference: str) -> Any:
    """Return what ``module:name`` refers to: so declarations name what imports torch, pandas or them."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def deferred(reference: str) -> Callable[..., Any]:
    """Return a function that does what ``module:function`` does, imported when it is called."""

    def call(*values: Any, **keywords: Any) -> Any:
        return resolve(reference)(*values, **keywords)

    return call
