"""Errors that the code of a plug-in raises while it runs, as one sentence."""

import ast
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime import catalog, plugins

# A line of a traceback that is text: of an error in a loader process nothing else reaches this one.
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<number>\d+)')


def blamed(error: Exception) -> UserError | None:
    """Return what to say where the code of a plug-in took part in an error; None where none did.

    Args:
        error: as it was caught; one of a loader process holds its traceback as text.
    """
    lines = list(_lines(error))
    for file, number in reversed(lines):
        for source in plugins.sources():
            if _is_of(source, file):
                who = _plugin_at(source, file, number)
                # Further inside it may be another's mistake.
                inside = "" if lines[-1][0] == file else f" (in {lines[-1][0]}, line {lines[-1][1]})"
                return UserError(f"{who} ({file}, line {number}) raised {_what(error)}{inside}.")
    return None


def _lines(error: Exception) -> Iterator[tuple[str, int]]:
    """Yield files and line numbers, the innermost last."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0
    for match in _LINE.finditer(str(error)):
        yield match["file"], int(match["number"])


def _is_of(source: plugins.Source, file: str) -> bool:
    """Whether a file is a plug-in's module, or in its package."""
    module_file = getattr(source.module, "__file__", None)
    if module_file is None:
        return False
    path = Path(module_file)
    return file == module_file or (path.name == "__init__.py" and path.parent in Path(file).parents)


def _plugin_at(source: plugins.Source, file: str, number: int) -> str:
    """Return what a plug-in is called in whose class a line of a file is; of other lines the plug-in's file."""
    try:
        module = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        module = ast.Module([], [])
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.lineno <= number <= (node.end_lineno or 0):
            for plugins_of in catalog.CATALOGS:
                name = catalog.plugin_name(node.name)
                outside = plugins_of.outside().get(name)
                if outside is not None and outside.source == source:
                    return f"The {plugins_of.kind} {name!r} of the plug-in {source.label}"
    return f"The plug-in {source.label}"


def _what(error: Exception) -> str:
    """Return an error's type and text, on one line; of a loader process, the error raised there."""
    lines = str(error).strip().splitlines()
    if any(map(_LINE.search, lines)):
        return lines[-1].strip().rstrip(".")
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
