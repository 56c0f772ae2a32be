"""Parameters chosen by patterns of their names. Nothing here imports torch."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import did_you_mean


def choose(patterns: Sequence[str], names: Iterable[str], *, key: str) -> set[str]:
    """Return the names that are chosen: those of which the last pattern that matches does not begin with ``!``.

    Args:
        patterns: of whole names, as a shell has them (``*.router.*``), one after the other; with ``!`` before it, a
            pattern takes out again what it matches.
        names: of parameters.
        key: of the configuration that holds the patterns, for sentences.

    Raises:
        UserError: a pattern matches nothing.
    """
    known, chosen = list(names), set[str]()
    for pattern in patterns:
        body = pattern.removeprefix("!")
        matched = {name for name in known if fnmatchcase(name, body)}
        if not matched:
            raise UserError(
                f"{key}: the pattern {pattern!r} matches no parameter.{did_you_mean(body.replace('*', ' '), known)} "
                f"Their names begin with: {', '.join(dict.fromkeys(map(_beginning, known)))}."
            )
        chosen = chosen - matched if pattern.startswith("!") else chosen | matched
    return chosen


def _beginning(name: str) -> str:
    """Return the first part of a name, with its number: ``blocks.3``."""
    first, *rest = name.split(".")
    return f"{first}.{rest[0]}" if rest and rest[0].isdigit() else first
