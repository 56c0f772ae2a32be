"""The one exception that the user can resolve, and the one warning of a run that continues."""

import json
import re
from pathlib import Path
from typing import Any

# Around the two spellings of an option inside a sentence; characters of Unicode's private use, which no text has.
# Drawn as ⟨ | ⟩, an error holds "Measure more images with ⟨--limit 500|limit=500⟩.": ``sentence`` shows what is before
# the bar, ``str`` what is behind it, and ``format`` all, so that a sentence may be part of another one.
_START, _BETWEEN, _END = "\ue000", "\ue001", "\ue002"
_SPELLINGS = re.compile(f"{_START}(.*?){_BETWEEN}(.*?){_END}", re.DOTALL)


def option(keyword: str, value: object = None, flag: str | None = None) -> str:
    """Return an option for the sentence of a ``UserError``, which each front end spells in its own way.

    >>> from moeprobe.errors import UserError, option
    >>> error = UserError(f"Measure more images with {option('limit', 500)}.")
    >>> str(error), error.sentence
    ('Measure more images with limit=500.', 'Measure more images with --limit 500.')

    Args:
        keyword: of Python, e.g. "group_images" for ``--group-images``.
        value: what to give: ``--limit 5`` and ``limit=5``; True of a switch: ``--overwrite`` and ``overwrite=True``.
            None = the option is only named.
        flag: typed in place of the keyword with hyphens and the value: "--capacity trained".
    """
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if flag is None:
        flag = f"--{keyword.replace('_', '-')}"
        flag += "" if value is None or value is True else f" {text}"
    if value is not None:
        literal = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else text
        keyword += f"={json.dumps(text) if isinstance(value, Path) else literal}"
    return f"{_START}{flag}{_BETWEEN}{keyword}{_END}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says, or its class, as the end of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class _Spelled:
    """A sentence whose options (``option``) the command line spells ``--limit 5``, and Python ``limit=5``."""

    args: tuple[Any, ...]

    @property
    def sentence(self) -> str:
        """The sentence in the words of the command line."""
        return _SPELLINGS.sub(r"\1", self._text)

    def __str__(self) -> str:
        return _SPELLINGS.sub(r"\2", self._text)

    @property
    def _text(self) -> str:
        return str(self.args[0]) if self.args else ""


class UserError(_Spelled, Exception):
    """The user's input is wrong: one sentence that says what, and how to fix it.

    It names options by ``errors.option``: ``str`` spells them as keywords (``limit=5``). The command line prints
    ``sentence`` (``--limit 5``) without a traceback, and exits with 2.
    """

    def __format__(self, spec: str) -> str:
        """Keep both spellings inside of another error's sentence."""
        return format(self._text, spec)


class FinishedError(UserError):
    """A folder holds exactly this run, finished: on the command line no error.

    Args:
        sentence: the message.
        folder: the run's folder.
    """

    def __init__(self, sentence: str, folder: Path) -> None:
        super().__init__(sentence, folder)
        self.folder = folder


class UnreadableError(UserError):
    """A file of the data cannot be read; a probe can continue without it."""


class RunWarning(_Spelled, UserWarning):
    """A sentence that a user should read about a run that continues."""


def already_finished(path: Path | str) -> RunWarning:
    """Return the warning that a file or folder exists with the same content and was left unchanged."""
    return RunWarning(f"{path} is finished; add {option('overwrite', True)} to repeat it.")
