"""Packages that moeprobe can do without, or needs in a later version, and the command that installs one of them.

moeprobe need not be on a package index, and its name there may belong to anybody. So the command installs from the
folder that moeprobe is from or, where there is none, the packages of the extra by their own names.
"""

import json
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from moeprobe.errors import UserError
from moeprobe.runtime.files import display_path, is_file

_NAME = "moeprobe"
_PROJECT, _CONSTRAINTS = "pyproject.toml", "constraints.txt"


def missing_package(what: str, package: str, extra: str, *, otherwise: str = "") -> UserError:
    """Return that something needs a package, and how to install it.

    Args:
        what: the beginning of the sentence, e.g. "hf:".
        package: its usual name, e.g. "transformers".
        extra: the extra of moeprobe that brings it.
        otherwise: what else can be done; the end of the sentence.
    """
    end = f", or {otherwise}" if otherwise else ""
    return UserError(f"{what} needs {package}, which is not installed: {install_command(extra)}{end}.")


def is_older(package: str, version: str) -> bool:
    """Whether the installed version of a package is older than this one."""
    from packaging.version import Version

    return Version(metadata.version(package)) < Version(version)


def outdated_package(what: str, package: str, version: str) -> UserError:
    """Return that something needs a later version of a package, and how to install it.

    Args:
        what: the beginning of the sentence, e.g. "--parallel".
        package: its usual name, e.g. "transformers".
        version: the first that will do.
    """
    return UserError(
        f"{what} needs {package} {version} or later, and this is {metadata.version(package)}: "
        f"pip install {_quote(f'{package}>={version}')}."
    )


def install_command(extra: str) -> str:
    """Return the command of pip that installs an extra into this moeprobe.

    From a clone it is ``pip install -c constraints.txt -e '.[hf]'``; without a folder to install from it names the
    packages that the extra asks for (PEP 610 says where an installation is from).
    """
    folder, editable = _folder()
    if folder is None:
        return " ".join(["pip install", *map(_quote, requirements_of(extra))])
    place_name = display_path(folder)
    constraints = (
        ["-c", shlex.quote(str(place_name / _CONSTRAINTS))] if is_file(folder / _CONSTRAINTS) else []
    )
    return " ".join(["pip install", *constraints, *["-e"] * editable, _quote(f"{place_name}[{extra}]")])


def requirements_of(extra: str) -> list[str]:
    """Return what an extra asks for, e.g. ``transformers>=5.20``; its name where moeprobe is not installed."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires(_NAME) or ()]
    except metadata.PackageNotFoundError:
        return [extra]
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in requirements
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    ]


def _folder() -> tuple[Path | None, bool]:
    """Return the folder that moeprobe is from, if it is there, and whether its files are used in place."""
    clone = Path(__file__).parents[2]
    if is_file(clone / _PROJECT):
        return clone, True
    installed_from = _installed_from()
    is_there = installed_from is not None and is_file(installed_from / _PROJECT)
    return (installed_from, False) if is_there else (None, False)


def _installed_from() -> Path | None:
    """Return the local folder that pip installed from; None where it was something else, or nothing says it."""
    try:
        text = metadata.distribution(_NAME).read_text("direct_url.json")
        content: Any = json.loads(text) if text else {}
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    url = content.get("url") if isinstance(content, dict) and "dir_info" in content else None
    parts = urlsplit(url) if isinstance(url, str) else None
    return Path(unquote(parts.path)) if parts is not None and parts.scheme == "file" else None


def _quote(requirement: str) -> str:
    """Return an argument in quotes, which the brackets and signs of a requirement need in any shell."""
    return f"'{requirement}'" if shlex.quote(requirement) == requirement else shlex.quote(requirement)
