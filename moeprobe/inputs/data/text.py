"""Texts in one file of the user's: ``text:FILE``."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import TextDataset, TextExample, check_split
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import expand, is_file, read_bytes
from moeprobe.runtime.similar_paths import did_you_mean_path

_KEYS = ("text", "id", "label")
# More than a probe gets through in a day.
_LIMIT = 2**29


class Text(TextDataset):
    """Texts in a file, one per line (.txt), or as JSON with "text" and optional "id" and "label" (.jsonl).

    A file is one split, the one that is asked for; blank lines are none. Names are ``stem/line``, counted from 0, or
    the "id". Labels are strings or whole numbers; where a text has one, each has. Other keys whose values are strings
    or whole numbers are columns, which ``--unit`` may name.
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        if not location:
            raise UserError("'text' needs a file: write text:PATH, where PATH is a .txt or a .jsonl.")
        check_split(split, self.splits)
        path = expand(location)
        if path.suffix not in (".txt", ".jsonl"):
            raise UserError(f"Texts are read from a .txt (one per line) or a .jsonl; got {location!r}.")
        if not is_file(path):
            raise UserError(f"There is no file of texts {location!r}.{did_you_mean_path(path)}")
        try:
            lines = (
                read_bytes(path, limit=_LIMIT)
                .decode("utf-8-sig")
                .replace("\r\n", "\n")
                .replace("\r", "\n")
                .split("\n")
            )
        except UnicodeDecodeError:
            raise UserError(f"{location!r} is not written in UTF-8.") from None
        rows = [
            (
                number,
                _row(line, f"line {number + 1} of {location!r}")
                if path.suffix == ".jsonl"
                else {"text": line},
            )
            for number, line in enumerate(lines)
            if line.strip()
        ]
        rows = [(number, row) for number, row in rows if row["text"].strip()]
        if not rows:
            raise UserError(f"{location!r} holds no text.")
        self._texts = [row["text"].strip() for _, row in rows]
        self.image_ids: Sequence[str] = [str(row.get("id", f"{path.stem}/{number}")) for number, row in rows]
        if len(set(self.image_ids)) < len(rows):
            raise UserError(f"Two texts of {location!r} have one id.")
        labels = [row.get("label") for _, row in rows]
        if any(label is None for label in labels) and any(label is not None for label in labels):
            raise UserError(f"Some texts of {location!r} have a label and some have none.")
        names = sorted({str(label) for label in labels if label is not None})
        self.class_names = tuple(names) or None
        self._labels = [None if label is None else names.index(str(label)) for label in labels]
        self._rows = [row for _, row in rows]
        self.column_names = tuple(dict.fromkeys(key for row in self._rows for key in row if key not in _KEYS))

    def example(self, index: int) -> TextExample:
        """Return text ``index``."""
        return TextExample(self._texts[index], self.image_ids[index], self._labels[index])

    def column(self, name: str) -> Sequence[str]:
        """Return what the lines have under a key."""
        return [str(row.get(name, "")) for row in self._rows]

    def content_hash(self) -> str:
        """Return a hash of the names and the texts: lines of a file are counted, and may be rewritten."""
        content = json.dumps(list(zip(self.image_ids, self._texts, strict=True)))
        return hashlib.sha256(content.encode()).hexdigest()


def _row(line: str, where: str) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        UserError: it is none, or has no text, or a value of the wrong kind.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where[0].upper()}{where[1:]} is not JSON.") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise UserError(f'{where[0].upper()}{where[1:]} is no object with a string "text".')
    for key in ("id", "label"):
        value = row.get(key, "")
        if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int))):
            raise UserError(f'"{key}" in {where} is neither a string nor a whole number.')
    for key in _KEYS:
        if not is_unicode(str(row.get(key))):
            raise UserError(f'"{key}" in {where} holds half a character (a lone surrogate).')
    columns = {
        key: value
        for key, value in row.items()
        if key not in _KEYS and isinstance(value, str | int) and not isinstance(value, bool)
    }
    return {key: row[key] for key in _KEYS if row.get(key) is not None} | columns
