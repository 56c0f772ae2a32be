"""Groups of commands, and how their help is laid out: options under headings, and no type where a value says it.

A group names the new command where an earlier name is typed.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from moeprobe.errors import UserError

# Names that commands had before recorded routing became a group.
RENAMED = {
    "analyze-trace": "trace analyze",
    "check-trace": "trace check",
    "drift": "trace drift",
    "mismatch": "trace mismatch",
    "import trace": "trace import",
    "import routed-experts": "trace import",
}


class NamingGroup(TyperGroup):
    """A group that answers an earlier name with today's."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options in the order of the help."""
        return lay_out(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is typed.

        Raises:
            UserError: it had that name once.
        """
        typed = args[0] if ctx.parent is None else f"{self.name} {args[0]}"
        if typed in RENAMED and args[0] not in self.commands:
            raise UserError(f"moeprobe {typed} is now: moeprobe {RENAMED[typed]} ...")
        return super().resolve_command(ctx, args)


class TraceGroup(NamingGroup):
    """The commands of recorded routing, of which one was called as the group is."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is typed.

        Raises:
            UserError: it is the model of ``trace MODEL``, which records now as ``trace record MODEL``.
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
        "data", "split", "limit", "seed", "masks", "class_null", "max_length", "skip_bad_images", "allow_not_finite",
        "images", "file",
    ),
    "Model": ("layers", "names", "trained_capacity", "group_images", "dtype", "precision", "floor_images", "download"),
    "Output": ("out", "overwrite", "svg", "full", "json"),
    "Speed": ("device", "batch_size", "workers", "retry", "shard", "dry_run"),
}  # fmt: skip
# The options of a command with fewer than these are read at a glance.
_MANY = 12
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ORDER = [*_PANEL_OF]
# What a value is called, by its type; a switch has none, and what an argument is its help says.
_VALUES = {int: "N", float: "X", Path: "PATH"}
EPILOG = "Documentation: docs/index.md. What a name means: `moeprobe explain NAME`."


class Command(TyperCommand):
    """A command whose shared options stand under headings in its help."""

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
