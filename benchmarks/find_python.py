"""Print the path of a Python of a version, which is looked for in PATH, in pyenv and in uv.

    python benchmarks/find_python.py 3.13
    python benchmarks/find_python.py newest

The newest must be newer than the Python that runs this. ``make test-python`` runs tests with what is printed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Version = tuple[int, int]

NEWEST = "newest"

# From the lowest version that moeprobe runs on.
_NAME = re.compile(r"python3\.(1[1-9]|[2-9]\d)")
_ASK = "import sys; print(*sys.version_info[:2], sys.executable)"


def pythons() -> dict[Version, str]:
    """Return the executable of each version that starts; where several have one version, the first that is found."""
    found: dict[Version, str] = {}
    for candidate in dict.fromkeys(_candidates()):
        printed = _output([candidate, "-c", _ASK])
        if printed:
            major, minor, executable = printed.split(maxsplit=2)
            found.setdefault((int(major), int(minor)), executable)
    return found


def choose(found: dict[Version, str], wanted: str) -> str:
    """Return the executable of a version, ``3.13``, or of the ``newest``.

    Raises:
        SystemExit: there is none; the sentence says what was looked for, and where.
    """
    if wanted == NEWEST:
        newer = {version: path for version, path in found.items() if version > sys.version_info[:2]}
        if newer:
            return newer[max(newer)]
        what = "newer than {}.{}".format(*sys.version_info[:2])
    else:
        path = next((path for version, path in found.items() if wanted == "{}.{}".format(*version)), None)
        if path is not None:
            return path
        what = wanted
    raise SystemExit(
        f"There is no Python {what} in PATH, pyenv or uv. Install one, or name another, e.g. PY=3.12."
    )


def _candidates() -> Iterator[str]:
    """Yield what may be a Python; a shim of pyenv may fail where the Python itself is there."""
    for folder in os.get_exec_path():
        yield from sorted(str(path) for path in Path(folder).glob("python3.*") if _NAME.fullmatch(path.name))
    if shutil.which("pyenv"):
        versions = Path(_output(["pyenv", "root"])) / "versions"
        yield from sorted((str(path) for path in versions.glob("3.*/bin/python")), reverse=True)
    if shutil.which("uv"):
        listed = _output(["uv", "python", "list", "--only-installed"])
        yield from (words[1] for line in listed.splitlines() if len(words := line.split()) > 1)


def _output(command: Sequence[str]) -> str:
    """Return what a command prints; nothing where it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="3.13, or newest")
    print(choose(pythons(), parser.parse_args().version))
