"""Files of responses: JSON lines, one response each; a JSON document of one or a list of them; or a file of torch."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.recordings.csv_choices import expert_counts, is_csv
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.packed import is_packed, unpacked
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import open_regular

# Bytes of one response: 200,000 tokens of 48 layers and 8 experts in 4 bytes each are about as many.
_MOST = 2**29


class Gathered(dict[str, Any]):
    """What was put together of a whole file or of several lines; its captures say their own names and tokens."""


def responses(path: Path, *, progress: Callable[[int], None]) -> Iterator[tuple[str, Any]]:
    """Yield each response with the place where it stands, e.g. ``line 3``.

    Args:
        path: the file.
        progress: called with the bytes read since the last call.

    Raises:
        UserError: the file cannot be read, or a response is no JSON or too large.
    """
    try:
        with open_regular(path) as file:
            if is_packed(file.peek(4)):
                yield "the file", Gathered(unpacked(path))
                progress(path.stat().st_size)
                return
            if is_csv(beginning := file.peek(64)[:64]):
                yield "the file", Gathered(expert_counts(path, file, beginning, progress=progress))
                return
            number = 0
            while line := file.readline(_MOST + 1):
                number += 1
                where = f"line {number}"
                try:
                    content = _parsed(path, where, line) if line.strip() else []
                except UserError:
                    # Not lines, but one document over several of them?
                    if number > 1 or path.suffix == ".jsonl":
                        raise
                    line += file.read(_MOST + 1)
                    where, content = "the document", _parsed(path, "the document", line)
                several = isinstance(content, list)
                for position, response in enumerate(content if several else [content], start=1):
                    yield f"{where}, response {position}" if several else where, response
                progress(len(line))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error


def _parsed(path: Path, where: str, text: bytes) -> Any:
    if len(text) > _MOST:
        raise UserError(f"{path}, {where}: a response has more than {_MOST:,} bytes; split it.")
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{path}, {where}: its lists or objects are nested too deeply.") from None
    except ValueError as error:
        hint = "; in a .jsonl file every line is a document" if path.suffix == ".jsonl" else ""
        raise UserError(f"{path}, {where}: this is not JSON ({error}){hint}.") from None


def identity(response: Mapping[str, Any], location: str) -> str:
    """Return the request's name; where it has none, ``place``: the file and line.

    Raises:
        Fault: it is no text.
    """
    meta = response.get("meta_info")
    values = (
        response.get("id"),
        response.get("request_id"),
        meta.get("id") if isinstance(meta, dict) else None,
    )
    for value in values:
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            if not is_unicode(str(value)):
                raise Fault(f"its id holds half a character (a lone surrogate); got {value!r}")
            return str(value)
    return location
