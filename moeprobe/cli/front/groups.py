"""Groups of commands, which name the new command where an earlier name is typed."""

from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup

from moeprobe.cli.front.help import lay_out
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
