"""What docstrings print is what the code gives."""

import doctest
import importlib
from pathlib import Path

import pytest

import moeprobe

PACKAGE = Path(moeprobe.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_of_docstrings(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.attempted and not ran.failed
