"""The package's source, which several tests read."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file; parsing all of the package takes longer than most tests of it."""
    return ast.parse(path.read_text(encoding="utf-8"))
