"""``make test-python`` finds a Python by its version, or says that there is none."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks import find_python

FOUND = {(3, 9): "/a", sys.version_info[:2]: "/b", (3, 98): "/c", (3, 99): "/d"}


@pytest.mark.parametrize(("wanted", "path"), [("newest", "/d"), ("3.98", "/c"), ("3.9", "/a")])
def test_a_python_is_chosen_by_its_version(wanted: str, path: str) -> None:
    assert find_python.choose(FOUND, wanted) == path


@pytest.mark.parametrize(("wanted", "what"), [("newest", "newer than 3."), ("3.97", "3.97 in PATH")])
def test_a_version_that_there_is_not_is_one_sentence(wanted: str, what: str) -> None:
    with pytest.raises(SystemExit, match=rf"There is no Python {what}.*PY=3\.12\."):
        find_python.choose({sys.version_info[:2]: "/b"}, wanted)


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_shim_that_fails_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of pyenv is in PATH for each version, and starts only those that are switched on."""
    script(tmp_path / "bin" / "python3.98", "exit 127")
    script(tmp_path / "bin" / "pyenv", f"echo {tmp_path}")
    script(tmp_path / "versions" / "3.98.1" / "bin" / "python", "echo 3 98 /is/here")
    script(tmp_path / "bin" / "uv", f"echo cpython-3.99 {tmp_path / 'uv'}")
    script(tmp_path / "uv", "echo 3 99 /of/uv")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), "/bin", "/usr/bin"]))
    found = find_python.pythons()
    assert (found[3, 98], found[3, 99]) == ("/is/here", "/of/uv")
