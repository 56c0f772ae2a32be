"""The arguments and options that commands share, how help lays them out, and groups of commands."""

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from moeprobe.cli.front.early import check_arguments
from moeprobe.declarations import Arg
from moeprobe.declarations.fields import NONE, arg_of, fields_of, flag_of
from moeprobe.declarations.options import Options
from moeprobe.declarations.recording_probe import MatchedTraces
from moeprobe.errors import UserError
from moeprobe.runtime import distributed, hub

Checkpoints = Annotated[
    list[str],
    typer.Argument(
        metavar="CHECKPOINT...",
        help="Run folders (their last checkpoint) or .safetensors files, with settings such as PATH,top_k=1 or "
        "PATH,experts=off; hf:PATH_OR_NAME of Hugging Face; or py:package.module:factory@settings.yaml; with two or "
        "more, the first is the reference.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set: NAME or NAME:LOCATION, e.g. folder:photos or text:lines.txt; default: the one that the "
        "checkpoints were trained on."
    ),
]


def _allow(context: typer.Context, allowed: bool) -> bool:
    if allowed:
        context.with_resource(hub.downloads())
    return allowed


Download = Annotated[
    bool,
    typer.Option(
        "--download",
        callback=_allow,
        help="Download hf: and huggingface: names from the hub if they are not cached.",
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="Print all numbers, not only the verdict and the headlines.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the number of passes and the time they take; run nothing.")
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="NUMBER/OF",
        help="Measure only this part of the inputs, e.g. 2/8, into --out; moeprobe merge puts the parts together.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help=arg_of(Options, "overwrite").help)]
Match = Annotated[str, typer.Option(help=arg_of(MatchedTraces, "match").help)]
Svg = Annotated[bool, typer.Option("--svg", help=arg_of(Options, "svg").help)]
# Fields of ``Options`` that the command line settles itself.
_NOT_TYPED = ("figures", "command")
# Switches of the command line alone.
_SWITCHES = {"download": Download, "json": AsJson, "dry_run": DryRun}


@dataclass(frozen=True)
class Common:
    """The shared options as typed: the library's by the names of ``Options``, then the output's."""

    changes: dict[str, Any]
    json: bool
    dry_run: bool

    def options(self) -> Options:
        """Return them as the library takes them.

        Raises:
            UserError: one is out of range.
        """
        return Options(**self.changes)


class CommonOptions:
    """The options that probes share, as the parameters of a command.

    Args:
        defaults: replace defaults of ``Options``, by name; None = not given unless typed.
        helps: other sentences, by name.
        only: which of them, in their order; None = all, with all switches.
    """

    def __init__(
        self,
        *,
        defaults: Mapping[str, Any] = NONE,
        helps: Mapping[str, str] = NONE,
        only: Sequence[str] | None = None,
    ) -> None:
        by_name = {
            field.name: field for field in fields_for(Options, defaults=defaults, helps=helps, but=_NOT_TYPED)
        }
        self._fields = [by_name[name] for name in (by_name if only is None else only) if name in by_name]
        self._switches = _SWITCHES if only is None else {"json": AsJson}

    def parameters(self) -> list[inspect.Parameter]:
        """Return what typer makes options of."""
        return [
            *(field.parameter() for field in self._fields),
            *(keyword(name, switch, False) for name, switch in self._switches.items()),
        ]

    def read(self, typed: dict[str, Any]) -> Common:
        """Return the shared options among the typed values, and remove them there.

        Raises:
            UserError: a word is none of the choices.
        """
        switches = {name: typed.pop(name) for name in self._switches}
        read = {field.name: field.read(typed.pop(field.name)) for field in self._fields}
        # None where it is no value of the field: nothing was typed.
        changes = {
            field.name: read[field.name]
            for field in self._fields
            if read[field.name] is not None or NoneType in get_args(field.annotation)
        }
        return Common(changes | {"command": command_line()}, switches["json"], switches.get("dry_run", False))


def with_common_options(
    options: CommonOptions,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a study's command the shared options, which reach it as one ``Common``; it runs in one process alone."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own_parameters = [
            keyword(name, hints[name], parameter.default)
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "common"
        ]

        @functools.wraps(command)
        def wrapper(**typed: Any) -> None:
            distributed.check_alone(command.__name__)
            common = options.read(typed)
            check_arguments(typed, split=common.options().split)
            command(**typed, common=common)

        return with_parameters(wrapper, [*own_parameters, *options.parameters()])

    return decorate


def with_parameters(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return a command whose parameters are these, as typer reads them."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def command_line() -> str:
    """Return the command line as typed, for the sidecar."""
    return shlex.join(["moeprobe", *sys.argv[1:]])


def require_folder(out: Path | None, *, json: bool, command: str) -> None:
    """Refuse a command that draws and has no folder to draw into."""
    if out is None and not json:
        raise typer.BadParameter(
            f"name a folder for the figures, e.g. --out reports/{command}", param_hint="--out"
        )


# Options of the command line, made of the fields that a probe or ``Options`` declares.

# How a sequence is typed, and read: the option repeated for each value, or all values comma-separated.
_REPEATED = Sequence[str | Path]
_NUMBERS = (Sequence[float], Sequence[int])


@dataclass(frozen=True)
class Field:
    """A field as an option.

    Attributes:
        name: of the field.
        annotation: of the field, without its ``Arg``.
        arg: how it is typed.
        flag: the option.
        default: what it is where it is not typed; ``inspect.Parameter.empty`` = it must be.
    """

    name: str
    annotation: Any
    arg: Arg
    flag: str
    default: Any

    def parameter(self) -> inspect.Parameter:
        """Return the parameter that typer makes the option of."""
        if self.arg.metavar:
            argument = typer.Argument(metavar=self.arg.metavar, help=self.arg.help)
            several = _REPEATED in self._kinds()
            kind: Any = list[Path] if several else Path if Path in self._kinds() else str
            if self.default is None:
                return keyword(self.name, Annotated[kind | None, argument], None)
            return keyword(self.name, Annotated[kind, argument])
        if self.annotation is bool and self.arg.choices is None:
            option = typer.Option(self.flag, help=self.arg.help)
        else:
            # Named only where it is not what typer makes of the parameter's name.
            option = typer.Option(*([self.flag] if self.arg.flag else []), help=self.arg.help)
        return keyword(self.name, Annotated[self._parameter_type(), option], self._parameter_default())

    def read(self, typed: Any) -> Any:
        """Return the value of a typed text.

        Raises:
            UserError: it is none of the choices, or no list of numbers.
        """
        if self.arg.choices is not None:
            if typed not in self.arg.choices:
                raise UserError(f"{self.flag} is {' or '.join(self.arg.choices)}; got {typed!r}.")
            return self.arg.choices[typed]
        kinds = self._kinds()
        if _REPEATED in kinds:
            return typed or []
        if any(kind in kinds for kind in _NUMBERS):
            return numbers(typed, self.flag, integers=Sequence[int] in kinds)
        if Sequence[str] in kinds:
            return names(typed)
        return typed

    def _kinds(self) -> tuple[Any, ...]:
        return (self.annotation, *get_args(self.annotation))

    def _parameter_type(self) -> Any:
        kinds = self._kinds()
        if self.arg.choices is not None:
            return str
        if _REPEATED in kinds:
            return list[str] | None
        if tuple[str, ...] in kinds or Sequence[str] in kinds or any(kind in kinds for kind in _NUMBERS):
            return str if isinstance(self.default, Sequence) and self.default else str | None
        return self.annotation

    def _parameter_default(self) -> Any:
        if self.arg.choices is not None:
            return next(word for word, value in self.arg.choices.items() if value == self.default)
        if isinstance(self.default, Sequence) and not isinstance(self.default, str):
            return ",".join(map(str, self.default)) or None
        return self.default


def fields_for(
    kind: type,
    *,
    defaults: Mapping[str, Any] = NONE,
    helps: Mapping[str, str] = NONE,
    but: Sequence[str] = (),
) -> list[Field]:
    """Return the fields of a probe, or of ``Options``, as options.

    Args:
        kind: the dataclass.
        defaults: other defaults than its own, by name.
        helps: other sentences than its own, by name.
        but: fields that are not typed.
    """
    own = {
        field.name: inspect.Parameter.empty if field.default is MISSING else field.default
        for field in fields(kind)
    }
    return [
        Field(
            name,
            annotation,
            replace(arg_of(kind, name), help=helps.get(name, arg_of(kind, name).help)),
            flag_of(kind, name),
            defaults.get(name, own[name]),
        )
        for name, annotation in fields_of(kind).items()
        if name not in but
    ]


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def names(text: str | None) -> list[str]:
    """Return comma-separated names, none for None."""
    return [part.strip() for part in text.split(",")] if text else []


def numbers(text: str | None, option: str, *, integers: bool = False) -> tuple[float, ...] | None:
    """Return comma-separated numbers, whole ones with ``integers``; None for None.

    Raises:
        UserError: something in it is no number.
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        example = (
            "whole numbers separated by commas, e.g. 1,8,32"
            if integers
            else ("numbers separated by commas, e.g. 0,0.1,0.2")
        )
        raise UserError(f"{option} takes {example}; got {text!r}.") from None


# Groups of commands, and their help: options under headings, and no type where a value says it.


class CommandGroup(TyperGroup):
    """A group whose help has its options in order."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options in the order of the help."""
        return lay_out(super().get_params(ctx))


class TraceGroup(CommandGroup):
    """The commands of recorded routing; a model that is named in place of one is to be recorded."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is typed.

        Raises:
            UserError: it is a model.
        """
        typed = args[0]
        is_command = typed in self.commands or get_close_matches(typed, self.commands)
        if not is_command and not typed.startswith("-"):
            raise UserError(
                f"trace has no command {typed!r}; to record a model's routing: moeprobe trace record {typed} ..."
            )
        return super().resolve_command(ctx, args)


# Options that commands share, by heading; what is a command's own comes before them.
PANELS = {
    "Data": (
        "data", "split", "limit", "seed", "unit", "masks", "class_null", "max_length", "chunk_length", "prompt",
        "image_size", "skip_bad_images", "allow_not_finite", "images", "file",
    ),
    "Model": ("layers", "names", "trained_capacity", "group_images", "dtype", "precision", "floor_images", "download"),
    "Output": ("out", "overwrite", "svg", "full", "json"),
    "Speed": (
        "device", "device_map", "max_memory", "offload", "parallel", "batch_size", "workers", "retry", "shard",
        "dry_run",
    ),
}  # fmt: skip
# The options of a command with fewer than these are read at a glance.
_MANY = 12
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ORDER = [*_PANEL_OF]
# What a value is called, by its type; a switch has none, and what an argument is its help says.
_VALUES = {int: "N", float: "X", Path: "PATH"}
EPILOG = "Documentation: docs/index.md. What a name means: `moeprobe explain NAME`."


def defer(make: Callable[[], Callable[..., None]], *, docstring: str | None) -> Callable[..., None]:
    """Return what stands for a command until its options are needed (``Command``), with the docstring of its help."""

    def command() -> None:
        raise AssertionError("a command is made before it runs")

    command.__doc__ = docstring
    command.make = make  # type: ignore[attr-defined]
    return command


class Command(TyperCommand):
    """A command whose shared options stand under headings in its help.

    Its options are made when they are first needed (``defer``). A process runs one command of fifty, and the help
    of all commands shows no options.
    """

    _params: list[Any] | None = None

    @property
    def params(self) -> list[Any]:
        """The arguments and options."""
        if self._params is None:
            command = get_command_from_info(
                CommandInfo(callback=self.callback.make()),  # type: ignore[union-attr]
                pretty_exceptions_short=False,
                rich_markup_mode=self.rich_markup_mode,
            )
            self._params, self.callback = command.params, command.callback
        return self._params

    @params.setter
    def params(self, parameters: list[Any]) -> None:
        # None of a function that stands for the command.
        self._params = parameters or None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options in the order of the help."""
        return lay_out(super().get_params(ctx))


def lay_out(parameters: list[Any]) -> list[Any]:
    """Name the values of parameters briefly; of many options sort those that are shared under their headings."""
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _nothing
        elif parameter.metavar is None:
            parameter.metavar = _value_of(parameter)
    if len(options) < _MANY:
        return parameters
    for option in options:
        option.rich_help_panel = option.rich_help_panel or _PANEL_OF.get(option.name)
    return sorted(parameters, key=_sort_key)


def _sort_key(parameter: Any) -> int:
    return _ORDER.index(parameter.name) if parameter.name in _PANEL_OF else -1


def _nothing(ctx: Any) -> None:
    """Return no type; of an argument the name says it."""


def _value_of(option: Any) -> str:
    """Return what stands for the value of an option."""
    if option.is_flag:
        return ""
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    return next(
        (word for types, word in _VALUES.items() if isinstance(kind, type) and issubclass(kind, types)),
        "TEXT",
    )
