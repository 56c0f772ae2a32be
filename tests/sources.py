"""The files of the project, which several tests read."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file; parsing all of the package takes longer than most tests of it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def tracked_files(*patterns: str, root: Path = ROOT) -> list[str]:
    """Return the files that git knows: runs of one's own, such as the demo's, lie beside the committed ones."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True
    )
    return listed.stdout.splitlines()
