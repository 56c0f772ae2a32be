"""A folder that a run has for itself: locked against other runs, with a record of the files that it wrote."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.runtime import files, records
from moeprobe.runtime.files import display_path, resolve, status
from moeprobe.runtime.locks import Lock, check_free

# Seconds for which those who share a folder wait for one who opens or closes it.
_PATIENCE = 10.0


class RunFolder:
    """A folder in the hands of this process, from here to ``close``; made where it is missing.

    While it is held, every file that is written into it is put on its record, and nothing is written over a file that
    is not on it, through a link out of the folder, or into a folder that was removed meanwhile.

    Args:
        path: the folder; where that is does not change with the working directory.
        family: what kind it is.
        shared: several processes may have it at once, all of which ask for it shared.

    Raises:
        UserError: another process has it, or it cannot be written to.
    """

    def __init__(self, path: Path, family: records.Family, *, shared: bool = False) -> None:
        self.path = path = files.absolute(path)
        self.family = family
        self._written: set[str] = set()
        self._made = make_folder(path)
        self._descriptor = -1
        with contextlib.ExitStack() as undo:
            undo.callback(remove_empty, self._made)
            self._lock = Lock(path / records.LOCK, shared=shared, patience=_PATIENCE if shared else 0)
            undo.callback(self._lock.release)
            self._alone = not shared or self._lock.make_exclusive()
            contents = records.scan(path, family)
            check_family(path, contents, family)
            if self._alone:
                # Those of a run inside may be those of a process that is at it.
                remove_files(
                    path, [name for name in contents.temporary if not name.startswith(contents.runs)]
                )
            undo.callback(self._give_up_record, contents)
            self._open_record(contents)
            if shared and self._alone:
                self._lock.share()
            self._alone = not shared
            outer = files.guard_of(self.path / records.RECORD)
            if isinstance(outer, RunFolder) and outer.family.name == family.name:
                outer._add(f"{self.path.relative_to(outer.path).as_posix()}/")
            undo.pop_all()
        files.GUARDS[self.path] = self

    def _give_up_record(self, contents: records.Contents) -> None:
        """Undo ``_open_record``, which may have failed at any point."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            # One that was there before stays: without it nobody knows whose the files are.
            if self._alone and not (contents.recorded and contents.own):
                with contextlib.suppress(OSError):
                    (self.path / records.RECORD).unlink()

    def _open_record(self, contents: records.Contents) -> None:
        path = self.path / records.RECORD
        record = records.read_record(self.path) or records.Record()
        self._names = set(record.names)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._descriptor = os.open(path, flags, 0o644)
            size = os.fstat(self._descriptor).st_size
            if size == 0:
                self._append({"moeprobe": "files", "of": self.family.name})
            elif not record.whole:
                os.write(self._descriptor, b"\n")
        except OSError as error:
            raise UserError(f"Cannot write {display_path(path)}: {error.strerror or error}.") from error
        if not contents.recorded:
            for name in contents.own:
                self._add(name)

    def _append(self, line: Any) -> None:
        _write_all(self._descriptor, json.dumps(line).encode() + b"\n")

    def _add(self, name: str) -> None:
        if name not in self._names:
            try:
                self._append(name)
            except OSError as error:
                raise UserError(
                    f"Cannot write {display_path(self.path / records.RECORD)}: {error.strerror or error}."
                ) from error
            self._names.add(name)

    def writing(self, path: Path) -> None:
        """Note that a file is about to be written.

        Raises:
            UserError: it is not this run's to write, or the folder is gone.
        """
        self._check_not_removed()
        name = path.relative_to(self.path).as_posix()
        if not resolve(path.parent).is_relative_to(resolve(self.path)):
            raise UserError(
                f"{display_path(path.parent)} leads out of {display_path(self.path)} through a link; remove the link."
            )
        self._check_own(name, path)
        self._add(name)
        self._written.add(name)

    def expect(self, run: str) -> None:
        """Note that another process writes a run into a folder inside, which is then a part of this one."""
        self._add(f"{run}/")

    def removing(self, path: Path) -> None:
        """Note that a file is removed on purpose.

        Raises:
            UserError: it is not this run's to remove.
        """
        name = path.relative_to(self.path).as_posix()
        self._check_own(name, path)
        self._written.discard(name)

    def _check_own(self, name: str, path: Path) -> None:
        """Raise ``UserError`` if there is a file that is not on the record."""
        if name not in self._names and files.is_there(path):
            # Each process that shares the folder has written its own part of the record.
            self._names |= set((records.read_record(self.path) or records.Record()).names)
            if name not in self._names:
                raise UserError(
                    f"{display_path(path)} was not written by moeprobe; move it away, or choose another folder."
                )

    def _check_not_removed(self) -> None:
        record = files.status(self.path / records.RECORD)
        if record is None or not os.path.samestat(record, os.fstat(self._descriptor)):
            raise UserError(
                f"{display_path(self.path)} was removed or emptied while this run wrote to it; give its command again."
            )

    def check(self, *, ignored: str = "") -> None:
        """Raise ``UserError`` unless all that was written since the folder was opened is there.

        Args:
            ignored: a folder inside that is not checked.
        """
        self._check_not_removed()
        wanted = [name for name in self._written if not (ignored and name.startswith(f"{ignored}/"))]
        gone = tuple(sorted(name for name in wanted if not files.is_there(self.path / name)))
        if gone:
            raise UserError(
                f"{records.list_names(gone)} vanished from {display_path(self.path)} while this run wrote to it; give "
                f"its command again with {option('overwrite')}."
            )

    def clear(self) -> None:
        """Remove what moeprobe wrote here.

        Raises:
            UserError: there is something else, the folder is one that is never emptied, or another process uses it or
                a run inside.
        """
        contents = records.scan(self.path, self.family)
        check_replaceable(self.path, contents, self.family)
        if not self._alone and not self._lock.make_exclusive():
            raise UserError(
                f"{display_path(self.path)} is in use by another process; {option('overwrite')} must wait for it."
            )
        with contextlib.ExitStack() as locks:
            for run in contents.runs:
                locks.enter_context(Lock(self.path / run / records.LOCK))
            # Once more, when nobody else can add to it.
            contents = records.scan(self.path, self.family)
            check_replaceable(self.path, contents, self.family)
            remove_files(self.path, (*contents.own, *contents.temporary))
        self._names = set()
        self._compact()
        if not self._alone:
            self._lock.share()

    def remove(self, prefix: str) -> None:
        """Remove our files below a folder of this one, and the folder if nothing else is in it."""
        below = [name for name in self._names if name.startswith(f"{prefix}/") and not name.endswith("/")]
        for name in below:
            files.remove(self.path / name)
        with contextlib.suppress(OSError):
            (self.path / prefix).rmdir()

    def remove_runs(self, prefix: str) -> None:
        """Remove the runs in a folder of this one, which nobody else has any more, and the folder."""
        folder = self.path / prefix
        if files.is_there(folder):
            self.discard((f"{prefix}/",))
            remove_empty((*folder.glob("*/"), folder))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Keep others out who share the folder; yields whether that worked: False while another process has it."""
        is_exclusive = self._alone or self._lock.make_exclusive()
        try:
            yield is_exclusive
        finally:
            if is_exclusive and not self._alone:
                self._lock.share()

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files, and runs inside (ending in ``/``) with all that moeprobe wrote into them; the rest stays.

        For a folder that nobody else has (``exclusive``); a file that is missing is passed over.

        Raises:
            UserError: a run inside is in use, or something cannot be removed.
        """
        wanted = tuple(paths)
        contents = records.scan(self.path, self.family)
        with contextlib.ExitStack() as locks:
            for run in contents.runs:
                if run.startswith(wanted):
                    locks.enter_context(Lock(self.path / run / records.LOCK))
            names = [name for name in (*contents.own, *contents.temporary) if name.startswith(wanted)]
            remove_files(self.path, names)
        self._written.difference_update(names)
        self._names |= set((records.read_record(self.path) or records.Record()).names)
        self._compact()

    def _compact(self) -> None:
        """Keep only existing files on the record, in order; no file is removed except the record.

        The same run leaves the same record, interrupted or not.
        """
        existing = sorted(name for name in self._names if files.is_there(self.path / name))
        remove_empty_around(self.path, self._names - set(existing))
        lines = [json.dumps(line) for line in ({"moeprobe": "files", "of": self.family.name}, *existing)]
        content = "".join(f"{line}\n" for line in lines)
        new, descriptor = self.path / records.NEW_RECORD, -1
        try:
            new.unlink(missing_ok=True)  # one of an earlier run, or a link that would be written through
            if (self.path / records.RECORD).read_text(encoding="ascii", errors="replace") == content:
                return
            # Opened once, before it takes the place of the record: what cannot be opened afterwards would be lost.
            descriptor = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            _write_all(descriptor, content.encode("ascii"))
            new.replace(self.path / records.RECORD)
        except OSError:  # the record stays as it is, which is enough
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            replaced = descriptor
        else:
            replaced, self._descriptor = self._descriptor, descriptor
        if replaced >= 0:
            with contextlib.suppress(OSError):
                os.close(replaced)

    def close(self) -> None:
        """Give the folder back; one that was made here and holds nothing goes again."""
        if files.GUARDS.get(self.path) is not self:
            return
        del files.GUARDS[self.path]
        # What cannot be put in order is left to the next who opens it: all that was written is there.
        with contextlib.suppress(UserError, OSError):
            self._check_not_removed()
            if self._alone or self._lock.make_exclusive():
                self._names |= set((records.read_record(self.path) or records.Record()).names)
                self._compact()
                if not records.scan(self.path, self.family).own:
                    (self.path / records.RECORD).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._lock.release()
        remove_empty(self._made)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_all(descriptor: int, content: bytes) -> None:
    while content:  # a disk may take a part at a time
        content = content[os.write(descriptor, content) :]


def make_folder(path: Path) -> list[Path]:
    """Make a folder; returns those that were missing, the innermost first.

    Raises:
        UserError: it cannot be made.
    """
    missing = [folder for folder in (path, *path.parents) if status(folder) is None]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write {display_path(path)}: {error.strerror or error}.") from error
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the empty ones among the folders; the innermost come first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def remove_files(path: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, and the folders inside that held nothing else.

    Raises:
        UserError: one cannot be removed.
    """
    names = tuple(names)
    for name in names:
        try:
            (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"Cannot replace {display_path(path / name)}: {error.strerror or error}."
            ) from error
    remove_empty_around(path, names)


def remove_empty_around(path: Path, names: Iterable[str]) -> None:
    """Remove the folders inside a folder that held these files and hold nothing any more; no file is removed."""
    around = {path / parent for name in names for parent in PurePosixPath(name).parents} - {path}
    for folder in around:
        with contextlib.suppress(OSError):
            # A lock that nobody else holds is all that may be left of a run inside.
            if os.listdir(folder) == [records.LOCK]:  # noqa: PTH208
                (folder / records.LOCK).unlink(missing_ok=True)
    remove_empty(sorted(around, key=lambda folder: len(folder.parts), reverse=True))


def check_family(path: Path, contents: records.Contents, family: records.Family) -> None:
    """Raise ``UserError`` where a folder's record is one of another kind."""
    if contents.of not in ("", family.name):
        raise UserError(
            f"{display_path(path)} is the folder of a {contents.of}, not of a {family.name}; choose another folder."
        )


def check_replaceable(path: Path, contents: records.Contents, family: records.Family) -> None:
    """Raise ``UserError`` unless ``--overwrite`` may remove everything in a folder."""
    check_family(path, contents, family)
    if family.shares:
        return
    if contents.foreign:
        raise UserError(
            f"{display_path(path)} holds files that moeprobe did not write: {records.list_names(contents.foreign)}. "
            f"{option('overwrite')} leaves them alone; move them away, or choose another folder."
        )
    real_path = resolve(path)
    for find_folder, what in ((Path.cwd, "the working directory"), (Path.home, "your home")):
        with contextlib.suppress(OSError, RuntimeError):  # a folder that was removed, a user without a home
            if resolve(find_folder()).is_relative_to(real_path):
                raise UserError(
                    f"{display_path(path)} is or holds {what}, which {option('overwrite')} never empties; choose "
                    "another folder."
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
        check_free(path / records.LOCK, shared=shared)
        raise
