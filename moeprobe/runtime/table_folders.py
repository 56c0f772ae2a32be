"""Folders of commands that write tables in one go: known by the columns of the first one, and replaced as a whole."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moeprobe.errors import UserError, option
from moeprobe.runtime.folders import RunFolder, check_family, check_replaceable
from moeprobe.runtime.records import Family, scan


def family_of_table(name: str, columns: Iterable[str], *, files: tuple[str, ...] = ()) -> Family:
    """Return the family of folders whose first file is a CSV of their name with these columns."""
    header, file = ",".join(columns), f"{name}.csv"

    def patterns(folder: Path) -> tuple[str, ...]:
        try:
            is_ours = (folder / file).read_text(encoding="utf-8").startswith(header)
        except (OSError, ValueError):
            return ()
        return (file, *files) if is_ours else ()

    return Family(name, patterns=patterns)


def check_table_folder(folder: Path, family: Family, *, overwrite: bool) -> None:
    """Raise ``UserError`` where a folder holds something else, or tables that nobody allowed to replace."""
    contents = scan(folder, family)
    check_family(folder, contents, family)
    if contents.foreign and not contents.own:
        raise UserError(
            f"{folder} is not empty and holds no {family.name}.csv of moeprobe; choose another {option('out')}."
        )
    if contents.own and not overwrite:
        raise UserError(
            f"{folder} holds {family.name}.csv already; add {option('overwrite', True)} to replace it, or choose "
            f"another {option('out')}."
        )
    if overwrite:
        check_replaceable(folder, contents, family)


@contextmanager
def table_folder(folder: Path, family: Family, *, overwrite: bool) -> Iterator[Path]:
    """Give the path to write tables to, for one process at a time."""
    with RunFolder(folder, family) as run_folder:
        # Once more, inside the lock: another process may have written here meanwhile.
        check_table_folder(folder, family, overwrite=overwrite)
        if overwrite:
            run_folder.clear()
        yield run_folder.path
        run_folder.check()
