"""Plug-ins from outside the package: Python files that a user names, and modules of installed packages.

Files are named by ``moeprobe --plugins FILE.py``, or in the environment variable ``MOEPROBE_PLUGINS``, separated as in
``PATH``; the option adds to the variable, so that loader processes know them too. Installed packages name a module as
an entry point of the group ``moeprobe.plugins``. Nothing else is imported, whatever is in the working directory.

Which classes of a module are plug-ins, and of what kind, the catalogs say (see ``catalog``).
"""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime import torchvision_compat

VARIABLE, GROUP, OPTION = "MOEPROBE_PLUGINS", "moeprobe.plugins", "--plugins"
# What a plug-in file is imported as; its path is a part of it, so that two files may have one name.
_PREFIX = "moeprobe_plugin_"


@dataclass(frozen=True)
class Source:
    """Where plug-ins are from: a file by its absolute path, or an installed module by its name.

    Attributes:
        name: how it is named in sentences and sidecars.
        module: what it is imported as.
        sha256: hash of the Python file as it was imported; empty where an installed module has none.
        named: a user named the file, rather than installed a package.
    """

    name: str
    module: ModuleType
    sha256: str
    named: bool

    @property
    def label(self) -> str:
        """What tables and sidecars call it: without the folder, which says nothing on another machine."""
        return Path(self.name).name if self.named else self.name

    def classes(self) -> list[type]:
        """Return the public classes that are defined in the module, or below it."""
        module_name = self.module.__name__
        return [
            value
            for name, value in vars(self.module).items()
            if isinstance(value, type)
            and not name.startswith("_")
            and (value.__module__ == module_name or value.__module__.startswith(f"{module_name}."))
        ]


def files() -> list[Path]:
    """Return the files that are named in the environment, by their absolute paths."""
    return [Path(os.path.abspath(name)) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]  # noqa: PTH100


def version() -> str:
    """Return what changes with the files that are named."""
    return os.environ.get(VARIABLE, "")


@contextlib.contextmanager
def add(paths: Iterable[str | Path]) -> Iterator[None]:
    """Name further files in the environment of this process and those it starts, for good unless the block fails."""
    before = os.environ.get(VARIABLE)
    # By absolute paths, whatever the working directory is later.
    absolute = [os.path.abspath(path) for path in (*files(), *paths)]  # noqa: PTH100  (follows no links)
    if absolute:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(absolute))
    try:
        yield
    except BaseException:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        raise


def plugin_options(arguments: Sequence[str]) -> list[str]:
    """Return the values of ``--plugins`` before the command among the arguments of the command line."""
    values, remaining = [], list(arguments)
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option == OPTION and (equals or remaining):
            values.append(value if equals else remaining.pop(0))
    return values


def sources() -> list[Source]:
    """Return all that is named or installed, imported.

    Raises:
        UserError: a file does not exist, or a module cannot be imported.
    """
    return [*(_of_file(path) for path in dict.fromkeys(files())), *_installed_plugins()]


@cache
def _of_file(path: Path) -> Source:
    if not path.is_file():
        raise UserError(f"There is no plug-in file {path}.")
    if path.suffix != ".py":
        raise UserError(f"{path} is no Python file; the name of a plug-in file ends in .py.")
    try:
        digest = _digest(path)
    except OSError as error:
        raise UserError(f"Cannot read the plug-in file {path}: {error.strerror or error}.") from error
    return Source(str(path), _import(module_name(path), str(path)), digest, named=True)


@cache
def _installed_plugins() -> tuple[Source, ...]:
    folders = _installed_in()
    if not folders:
        return ()
    from importlib import metadata

    points = [
        point
        for distribution in metadata.distributions(path=folders)
        for point in distribution.entry_points
        if point.group == GROUP
    ]
    installed = []
    for point in sorted(points, key=lambda point: (point.value, point.name)):
        module = _import(point.module, f"the plug-in {point.name} ({point.value})")
        file = getattr(module, "__file__", None)
        installed.append(
            Source(point.module, module, "" if file is None else _digest(Path(file)), named=False)
        )
    return tuple(installed)


def _installed_in() -> list[str]:
    """Return the folders of the path, except the working directory, in which an installed package names plug-ins.

    A look at the files takes a tenth of what ``importlib.metadata`` takes.
    """
    group, working = f"[{GROUP}]".encode(), os.path.abspath("")  # noqa: PTH100
    folders = [folder for folder in dict.fromkeys(sys.path) if folder and os.path.abspath(folder) != working]  # noqa: PTH100
    return [
        folder
        for folder in folders
        if any(group in file.read_bytes() for file in Path(folder).glob("*-info/entry_points.txt"))
    ]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def module_name(path: Path) -> str:
    """Return what a plug-in file is imported as."""
    stem = re.sub(r"\W", "_", path.stem)
    return f"{_PREFIX}{stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def _import(name: str, described: str) -> ModuleType:
    """Import a module; raises ``UserError`` with the place of what went wrong."""
    try:
        return torchvision_compat.import_with_operators(name)
    except UserError as error:
        raise UserError(f"Cannot import {described}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"Cannot import {described}: {_where(error)}{_what(error)}.") from error


def _where(error: BaseException) -> str:
    """Return the first line after the import system's, which is one of the plug-in's file: "line 3: "."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: "
    machinery = (__file__, torchvision_compat.__file__, importlib.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        frame.lineno
        for frame in frames
        if frame.filename not in machinery and not frame.filename.startswith("<")
    ]
    return f"line {lines[0]}: " if lines else ""


def _what(error: BaseException) -> str:
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[0].rstrip('.')}" if text else type(error).__name__


class _Finder:
    """Finds the modules of plug-in files wherever they are imported: loader processes unpickle views by these names."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if not name.startswith(_PREFIX):
            return None
        path = next((path for path in files() if module_name(path) == name), None)
        return None if path is None else importlib.util.spec_from_file_location(name, path)


sys.meta_path.append(_Finder())
