"""What can be asked of something, as a dataclass: its fields are the parameters, its docstring is the help."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ForwardRef, Generic, Self, TypeVar, get_args

from moeprobe.declarations.fields import NONE, arg_of, fields_of, flag_of, plain, read_field
from moeprobe.declarations.kinds import Kind, Panel, resolve
from moeprobe.errors import UserError, option
from moeprobe.runtime import arguments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.declarations.options import Options
    from moeprobe.results.folder import Result
    from moeprobe.runtime.progress import Progress

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Question(Kind, Generic[R]):
    """A kind of run that is asked for by parameters; ``R`` is what it returns.

    Attributes:
        panel: under which heading commands list it.
        function: what the API calls it; empty = its command with underscores.
        option_help: sentences about common options that mean something else here.
        defaults: common options where it has others than ``Options``.
        common: the common options that it takes, by the names of ``Options``; None = all.
        models: the fields that name models.
        recordings: the fields that name traces.
        unit: what its progress counts.
        renames: whether a finished run is shown under the names that are given now; otherwise they are part of it.
        needs_folder: what an output folder is for, where nothing is done without one; empty = it may be left out.
        printed: whether there is something to read on the screen without a folder.
        splits: whether it can be measured in shards.
        raises: what of it can be wrong, beside names and values; empty = nothing more.
        written: names of fields with files that a run writes beside its folder.
        work: ``module:class`` of the work that it asks for; imported when a run begins.
        drawn_by: ``module:function`` that draws a table in the ``colors`` of its checkpoints; imported when a run is
            drawn. Empty = ``draw`` does it, or there are no figures.

    Raises:
        UserError: a field has a value of another type, or out of range.
    """

    panel: ClassVar[Panel] = Panel.PROBES
    function: ClassVar[str] = ""
    option_help: ClassVar[Mapping[str, str]] = NONE
    defaults: ClassVar[Mapping[str, Any]] = NONE
    raises: ClassVar[str] = ""
    common: ClassVar[tuple[str, ...] | None] = None
    models: ClassVar[tuple[str, ...]] = ()
    recordings: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "inputs"
    renames: ClassVar[bool] = True
    needs_folder: ClassVar[str] = ""
    printed: ClassVar[bool] = True
    splits: ClassVar[bool] = False
    written: ClassVar[tuple[str, ...]] = ()
    work: ClassVar[str]
    drawn_by: ClassVar[str] = ""

    def __new__(cls, *positional: Any, **fields: Any) -> Self:
        """Refuse unknown and missing fields; the constructor of each question is made later than this class."""
        arguments.bind(cls.__name__, arguments.signature_of(cls), positional, fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in fields_of(type(self)):
            # Frozen: values are replaced once, by their checked form.
            object.__setattr__(self, name, read_field(type(self), name, getattr(self, name)))
        self.check()

    @classmethod
    def function_name(cls) -> str:
        """Return what the API calls the question."""
        # A plug-in may have a field of that name, which is refused elsewhere.
        own = cls.function if isinstance(cls.function, str) else ""
        return own or cls.name.replace("-", "_").replace(" ", "_")

    @classmethod
    def positional(cls) -> list[str]:
        """Return the fields that are arguments of the command, and positional ones of the function."""
        return [field.name for field in dataclasses.fields(cls) if arg_of(cls, field.name).metavar]

    @classmethod
    def result_name(cls) -> str:
        """Return the name of the class ``R``, of which an object is returned."""
        for base in cls.__mro__:
            for generic in getattr(base, "__orig_bases__", ()):
                # The name of R is a string in the class, as its module is imported late.
                parameters = get_args(generic)
                if parameters and isinstance(parameters[0], ForwardRef):
                    return parameters[0].__forward_arg__
        return "Any"

    @classmethod
    def with_fields(cls, values: Mapping[str, Any]) -> Self:
        """Return the question with some of its fields by name; None = not given.

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
        """Raise ``UserError`` where fields do not go together."""

    def check_options(self, options: "Options") -> None:
        """Raise ``UserError`` where common options do not suit, before anything is loaded."""

    def other_files(self) -> list[Path]:
        """Return the files that a run writes beside its folder."""
        return [path for name in self.written if (path := getattr(self, name)) is not None]

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the printed tables of a run."""
        return self.title

    def draw(self, result: "Result") -> "dict[str, Figure]":
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


class StandaloneQuestion(Question[R], Generic[R]):
    """A question whose fields name all that it is about; ``work`` is made of the question and common options."""

    def check_folder(self, options: "Options") -> None:
        """Raise ``UserError`` where nothing is done without an output folder, and none is named."""
        if self.needs_folder and options.out is None:
            example = option("out", f"reports/{self.kind}")
            raise UserError(f"Name a folder for {self.needs_folder}, e.g. {example}.")

    def ask(self, options: "Options | None" = None, watcher: "Progress | None" = None) -> R:
        """Do the work, in the folder of the options, and return what it found.

        Args:
            options: where to, and how; None = the usual.
            watcher: receives how the run advances.

        Raises:
            UserError: a file is damaged or missing, or something named does not fit.
        """
        from moeprobe.declarations.options import Options
        from moeprobe.runtime.progress import progress_of

        options = options or Options(**self.defaults)
        self.check_folder(options)
        self.check_options(options)
        return resolve(self.work)(self, options).execute(progress_of(watcher))


# What every command and every function of checkpoints takes beside the fields of a probe.
_TAKEN = (
    "checkpoints",
    "models",
    "data",
    "options",
    "watcher",
    "shard",
    "full",
    "help",
    "json",
    "download",
    "dry_run",
)
# A plug-in may have fields of these names: its panel and its audit are then the usual ones.
_ALLOWED = ("panel", "audit")


def check_fields(kind: type[Question[Any]]) -> None:
    """Raise ``UserError`` where a field is called as a common option, or as what declarations say of themselves."""
    from moeprobe.declarations.options import Options

    declared = _declared_of(kind)
    # Names of the declaration would be shadowed by a field.
    for field in dataclasses.fields(kind):
        if field.name not in _ALLOWED and field.name in declared:
            raise UserError(
                f"The field {field.name} of the probe {kind.__name__} is called as what declarations say of themselves "
                "(moeprobe.declarations); give it another name."
            )
    common = [field.name for field in dataclasses.fields(Options)] if kind.common is None else kind.common
    taken = {*common, *(_TAKEN if not issubclass(kind, StandaloneQuestion) else _TAKEN[3:])}
    for field in dataclasses.fields(kind):
        if field.name in taken:
            raise UserError(
                f"The field {field.name} of the probe {kind.__name__} is called as an option that all commands have; "
                "give it another name."
            )


def _declared_of(kind: type[Question[Any]]) -> set[str]:
    """Return the names that this package's base classes declare for every question, without its fields."""
    contracts = [base for base in kind.__mro__ if base.__module__.startswith("moeprobe.declarations.")]
    fields = {
        field.name
        for base in contracts
        if dataclasses.is_dataclass(base)
        for field in dataclasses.fields(base)
    }
    return {name for base in contracts for name in vars(base)} - fields


def panel_of(kind: type[Question[Any]]) -> Panel:
    """Return the heading of a question; a plug-in's, which may have a field of that name, is among the probes."""
    return kind.panel if isinstance(kind.panel, Panel) else Panel.PROBES
