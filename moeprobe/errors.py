"""The one exception that the user can resolve, and the one warning of a run that continues."""

import re
from pathlib import Path

# Options of the command line whose keyword is not their name with underscores.
_RENAMED = {
    "capacity": "trained_capacity",
    "file": "files",
    "full_gates": "all_gates",
    "download": "api.downloads()",
    "plugins": "api.use_plugins",
}
_SWITCHES = ("overwrite", "skip_bad_images", "class_null", "all_gates", "animate", "resume", "retry", "trust")
# A whole command is an example for a shell and stays as it is; of an option, the value is taken along.
_OPTION = re.compile(
    r"(?P<command>moeprobe [a-z][^.;]*)|(?P<add>\badd )?--(?P<name>[a-z][a-z-]*)(?:[ =](?P<value>[^\s,;)]+))?"
)
# What follows an option in a sentence and is a value: a number, a path, a placeholder, or NAME:PLACE.
_VALUE = re.compile(r"-?\d[\d.]*|\w*[:/]\S*|[A-Z_]{2,}|trained|unlimited")


class UserError(Exception):
    """The user's input is wrong: one sentence that says what, and how to fix it.

    Sentences are written in the words of the command line (``--limit 5``), which prints them without a traceback and
    exits with 2. In Python it is an ordinary exception, and ``str`` gives the sentence in keywords (``limit=5``).
    """

    @property
    def sentence(self) -> str:
        """The sentence in the words of the command line."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return _OPTION.sub(_as_keyword, self.sentence)

    def __format__(self, spec: str) -> str:
        """Keep the command line's words inside of another sentence."""
        return format(self.sentence, spec)


class FinishedError(UserError):
    """A folder holds exactly this run, finished: on the command line no error.

    Args:
        sentence: the message in Python.
        folder: the run's folder.
    """

    def __init__(self, sentence: str, folder: Path) -> None:
        super().__init__(sentence, folder)
        self.folder = folder


class UnreadableError(UserError):
    """A file of the data cannot be read; a probe can continue without it."""


class RunWarning(UserWarning):
    """A sentence that a user should read about a run that continues."""


def keyword_for(option: str, value: object) -> str | None:
    """Return how Python writes an option of the command line that is called otherwise there; None for others."""
    name = _RENAMED.get(option)
    return f"{name}={_literal(name, value)}" if name and isinstance(value, str) else name


def _as_keyword(match: re.Match[str]) -> str:
    if match["command"] is not None:
        return match["command"]
    name = match["name"].replace("-", "_")
    name = _RENAMED.get(name, name)
    before, argument = match["add"] or "", match["value"] or ""
    value = argument.rstrip(".:")
    if name in _SWITCHES and before:
        name = f"{name}=True"
    elif _VALUE.fullmatch(value):
        return f"{before}{name}={_literal(name, value)}{argument[len(value) :]}"
    return f"{before}{name} {argument}".rstrip()


def _literal(name: str, value: str) -> str:
    """Return a value as Python writes it."""
    if name == "trained_capacity":
        return str(value == "trained")
    if name == "files":
        return f'["{value}"]'
    return value if value.lstrip("-").replace(".", "", 1).isdigit() else f'"{value}"'
