"""Where an import writes its trace, and what the trace is called."""

from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.recordings.reading import TraceFile
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import is_there


def check_destination(path: Path, *, overwrite: bool) -> None:
    """Raise ``UserError`` unless a trace can be written to ``path``: nothing is there, or one that may be replaced."""
    if path.suffix != ".parquet":
        raise UserError(f"A trace is one file; end its name in .parquet, e.g. {path}.parquet.")
    if is_there(path):
        if not overwrite:
            raise UserError(f"{path} exists; add --overwrite to replace it.")
        try:
            TraceFile(path)
        except UserError as error:
            raise UserError(
                f"--overwrite replaces traces alone; move {path} away or choose another name ({error})."
            ) from None


def named_checkpoint(name: str, *, data: str) -> dict[str, Any]:
    """Return what a trace says of a model of which only the name is known.

    Raises:
        UserError: it, or what the requests are called, cannot be written.
    """
    for value in (name, data):
        if not is_unicode(value):
            raise UserError(f"A trace calls things by names in UTF-8; got {value!r}.")
    return {"name": name, "sha256": None}
