"""Which files a user's path of a trace stands for: itself, the parts in a folder, or those that match a pattern."""

import glob
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.files import is_folder, is_there

_SUFFIX = ".parquet"
# What folders of checkpoints and of runs hold, and folders of parts do not.
_OTHERS = (".json", ".safetensors")
# Characters of a pattern, in a path that does not exist itself.
_WILDCARDS = set("*?[")


def find_parts(path: Path) -> list[Path]:
    """Return the files of the trace that a path names, in their order.

    Raises:
        UserError: it is a folder or a pattern without any.
    """
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
    if path.suffix == _SUFFIX:
        return True
    return (
        is_folder(path)
        and bool(_parts_in(path))
        and not any(file.suffix in _OTHERS for file in path.iterdir())
    )


def folder_error(path: Path) -> UserError:
    """Return the error of a folder that is no trace in parts."""
    example = min(path.rglob(f"*{_SUFFIX}"), default=path / f"clean{_SUFFIX}")
    return UserError(f"{path} is a folder; name the traces in it, e.g. {example}.")


def _parts_in(folder: Path) -> list[Path]:
    # Hidden files, and those that begin with an underscore, are notes of programs that write in parts.
    return sorted(part for part in folder.glob(f"*{_SUFFIX}") if not part.name.startswith((".", "_")))
