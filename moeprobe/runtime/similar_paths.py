"""A path that does not exist, and the one like it that does."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from moeprobe.runtime.catalog import nearest

# Names of a folder that are looked at; what is in larger ones nobody types by hand.
_MOST_NAMES = 2000


def did_you_mean_path(path: str | Path, fits: Callable[[Path], bool] = os.path.exists) -> str:
    """Return " Did you mean 'X'?" for the path most like this one, "" if none is.

    Each part that does not exist is replaced by the most similar name in its folder.

    Args:
        path: does not exist, or does not fit.
        fits: whether a path is what was wanted; the last part is chosen among those that are.
    """
    path = Path(path).expanduser()
    there = next((level for level in (path, *path.parents) if level.is_dir()), None)
    if there is None or there == path:
        return ""
    *folders, last = path.relative_to(there).parts
    found = there
    for name in folders:
        near = _most_similar(name, found, Path.is_dir)
        if near is None:
            return ""
        found = near
    near = _most_similar(last, found, fits)
    if near is not None:
        return f" Did you mean {str(near)!r}?"
    # The folder is known now, and the name in it is not.
    return f" Did you mean a path in {str(found)!r}?" if folders else ""


def _most_similar(name: str, folder: Path, fits: Callable[[Path], bool]) -> Path | None:
    """Return the path in a folder whose name is most like this one, among those that fit."""
    exact = folder / name
    if _is_safe(exact, fits):
        return exact
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
    except OSError:
        return None
    near = nearest(name, sorted(entry for entry in names if _is_safe(folder / entry, fits)))
    return None if near is None else folder / near


def _is_safe(path: Path, fits: Callable[[Path], bool]) -> bool:
    """Whether a path fits; one that cannot be looked at does not."""
    try:
        return fits(path)
    except OSError:
        return False
