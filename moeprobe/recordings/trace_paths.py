"""Which files a user's path of a trace stands for: itself, the parts in a folder, or those that match a pattern.

A path may be an address in an object store, whose files are copied first.
"""

import glob
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.files import is_folder, is_there
from moeprobe.runtime.object_stores import copies_of, is_remote
from moeprobe.runtime.progress import Progress

_SUFFIX = ".parquet"
# What folders of checkpoints and of runs hold, and folders of parts do not.
_OTHERS = (".json", ".safetensors")
# Characters of a pattern, in a path that does not exist itself.
_WILDCARDS = set("*?[")


def find_parts(path: Path, *, watcher: Progress | None = None) -> list[Path]:
    """Return the files of the trace that a path names, in their order.

    Args:
        path: a file, a folder of parts, or a pattern; also in an object store.
        watcher: receives how the copying from an object store advances.

    Raises:
        UserError: it is a folder or a pattern without any, or a store cannot be read.
    """
    if is_remote(path):
        return copies_of(path, suffix=_SUFFIX, watcher=watcher)
    if is_folder(path):
        parts = _parts_in(path)
        if not parts:
            raise folder_error(path)
        return parts
    if is_there(path) or not _WILDCARDS & set(str(path)):
        return [path]
    parts = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 - of any path
    if not parts:
        raise UserError(f"There is no trace {path}: no file matches the pattern.")
    return parts


def is_trace_path(source: str | Path) -> bool:
    """Whether a path is one of a trace, and not of a checkpoint: by its name, or by what the folder holds."""
    path = Path(source)
    if path.suffix == _SUFFIX or is_remote(source):
        return True
    return (
        is_folder(path)
        and bool(_parts_in(path))
        and not any(file.suffix in _OTHERS for file in path.iterdir())
    )


def folder_error(path: Path) -> UserError:
    """Return the error of a folder that is no trace in parts."""
    example = min(path.rglob(f"*{_SUFFIX}"), default=None)
    if example is not None:
        return UserError(f"{path} is a folder; name the traces in it, e.g. {example}.")
    if any(path.glob("*.safetensors")):
        return UserError(
            f"{path} is a checkpoint; record its routing first: moeprobe trace record {path} --out traces."
        )
    return UserError(
        f"{path} is a folder without traces; name a file that trace record or trace import wrote."
    )


def _parts_in(folder: Path) -> list[Path]:
    # Hidden files, and those that begin with an underscore, are notes of programs that write in parts.
    return sorted(part for part in folder.glob(f"*{_SUFFIX}") if not part.name.startswith((".", "_")))
