"""The arguments and options that commands share."""

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from moeprobe.cli.early import check_arguments
from moeprobe.cli.fields import fields_for, keyword
from moeprobe.probes.base import NONE, OUT_OF_FIGURES, arg_of
from moeprobe.probes.engine.options import Options
from moeprobe.runtime import hub

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


def _allow(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        context.with_resource(hub.downloads())
    return wanted


Download = Annotated[
    bool,
    typer.Option(
        "--download",
        callback=_allow,
        help="Download hf: and huggingface: names from the hub if they are not cached.",
    ),
]
Images = Annotated[str | None, typer.Option(help="Names of images of the data set, comma-separated.")]
File = Annotated[list[str] | None, typer.Option(help="An image file of your own; may be repeated.")]
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
        help="Measure only this part of the images, e.g. 2/8, into --out; moeprobe merge puts the parts together.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help=arg_of(Options, "overwrite").help)]
IntervalSeed = Annotated[int, typer.Option(help="Seed of the intervals.")]
OutOfFigures = Annotated[Path | None, typer.Option(help=OUT_OF_FIGURES)]
Svg = Annotated[bool, typer.Option("--svg", help=arg_of(Options, "svg").help)]
# Fields of ``Options`` that the command line settles itself.
_NOT_TYPED = ("figures", "command")


@dataclass(frozen=True)
class Common:
    """The shared options as typed: those of the library by the names of ``Options``, and those about the output."""

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
        defaults: other defaults than those of ``Options``, by name; None = not given unless typed.
        helps: other sentences, by name.
    """

    def __init__(self, *, defaults: Mapping[str, Any] = NONE, helps: Mapping[str, str] = NONE) -> None:
        self._fields = fields_for(Options, defaults=defaults, helps=helps, but=_NOT_TYPED)

    def parameters(self) -> list[inspect.Parameter]:
        """Return what typer makes options of."""
        return [
            *(field.parameter() for field in self._fields),
            keyword("download", Download, False),
            keyword("json", AsJson, False),
            keyword("dry_run", DryRun, False),
        ]

    def read(self, typed: dict[str, Any]) -> Common:
        """Return the shared options of what was typed, and take them out of it.

        Raises:
            UserError: a word is none of the choices.
        """
        typed.pop("download")
        read = {field.name: field.read(typed.pop(field.name)) for field in self._fields}
        # None where it is no value of the field: nothing was typed.
        changes = {
            field.name: read[field.name]
            for field in self._fields
            if read[field.name] is not None or NoneType in get_args(field.annotation)
        }
        return Common(changes | {"command": command_line()}, typed.pop("json"), typed.pop("dry_run"))


def with_common_options(
    options: CommonOptions,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the shared options; they reach it as one ``Common`` in its parameter ``common``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            keyword(name, hints[name], parameter.default)
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "common"
        ]

        @functools.wraps(command)
        def wrapper(**typed: Any) -> None:
            common = options.read(typed)
            check_arguments(typed, split=common.options().split)
            command(**typed, common=common)

        return with_parameters(wrapper, [*own, *options.parameters()])

    return decorate


def with_parameters(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return a command whose parameters are these, as typer reads them."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
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
