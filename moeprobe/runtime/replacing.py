"""Whether a run may use a folder and replace its contents; checked before anything is computed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.files import shown
from moeprobe.runtime.locks import check_free
from moeprobe.runtime.records import LOCK, Contents, Family, list_names


def check_family(path: Path, contents: Contents, family: Family) -> None:
    """Raise ``UserError`` where a folder's record is one of another kind."""
    if contents.of not in ("", family.name):
        raise UserError(
            f"{shown(path)} is the folder of a {contents.of}, not of a {family.name}; choose another folder."
        )


def check_replaceable(path: Path, contents: Contents, family: Family) -> None:
    """Raise ``UserError`` unless ``--overwrite`` may remove everything in a folder."""
    check_family(path, contents, family)
    if family.shares:
        return
    if contents.foreign:
        raise UserError(
            f"{shown(path)} holds files that moeprobe did not write: {list_names(contents.foreign)}. "
            "--overwrite leaves them alone; move them away, or choose another folder."
        )
    resolved = path.resolve()
    for find_folder, what in ((Path.cwd, "the working directory"), (Path.home, "your home")):
        with contextlib.suppress(OSError, RuntimeError):  # a folder that was removed, a user without a home
            if find_folder().resolve().is_relative_to(resolved):
                raise UserError(
                    f"{shown(path)} is or holds {what}, which --overwrite never empties; choose another folder."
                )


@contextlib.contextmanager
def in_use_first(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Where a folder's contents are refused while another process writes them, say that instead.

    Nobody should be advised to replace what another is still writing.

    Args:
        path: the folder.
        shared: those who share it do not count.

    Raises:
        UserError: the block raised one; an ``InUseError`` where the folder is in use.
    """
    try:
        yield
    except UserError:
        check_free(path / LOCK, shared=shared)
        raise
