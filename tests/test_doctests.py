"""What docstrings print is what the code gives, and a reader can paste it: an example imports all that it names."""

import doctest
import importlib
from pathlib import Path

import pytest

import moeprobe
from moeprobe.runtime.catalog import ANALYSES

PACKAGE = Path(moeprobe.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_of_docstrings(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Examples write into the current folder.
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    ran = doctest.testmod(importlib.import_module(name), globs={})
    assert ran.attempted and not ran.failed


def test_every_metric_has_a_worked_example() -> None:
    analyses = {name: ANALYSES.get(name) for name in ANALYSES.names()}
    assert not [name for name, analysis in analyses.items() if ">>> " not in (analysis.__doc__ or "")]
