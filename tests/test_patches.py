"""Tests replace nothing private: a size, a clock or a step that a test changes has a public name with a meaning."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REPLACING = {"setattr", "delattr", "patch", "object"}
PRIVATE = re.compile(r"(^|\.)_[A-Za-z]\w*$")
# Of programs that a test runs in a process of its own.
ASSIGNED = re.compile(r"^\s*\w+(\.\w+)*\._[A-Za-z]\w* = ", re.MULTILINE)


def replaced(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the private names that a module replaces in others, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr=called) | ast.Name(id=called), arguments) if called in REPLACING:
                names = {one.value for one in arguments[:2] if isinstance(one, ast.Constant)}
                yield from ((node.lineno, str(name)) for name in names if PRIVATE.search(str(name)))
            case ast.Assign(targets) | ast.Delete(targets):
                of_others = [one for one in targets if isinstance(one, ast.Attribute) and not of_itself(one)]
                yield from ((node.lineno, one.attr) for one in of_others if PRIVATE.search(one.attr))
            case ast.Constant(str(text)) if match := ASSIGNED.search(text):
                yield node.lineno, match[0].strip(" =")


def of_itself(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def test_nothing_private_is_replaced() -> None:
    files = set(FOLDER.rglob("*.py")) - {Path(__file__)}
    assert len(files) > 100
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(files)}
    assert [f"{path}:{line}: {name}" for path, tree in trees.items() for line, name in replaced(tree)] == []


@pytest.mark.parametrize(
    "code",
    [
        'monkeypatch.setattr(loop, "_BLOCK", 4)',
        'monkeypatch.setattr("moeprobe.probes.engine.loop._BLOCK", 4)',
        'mock.patch.object(loop, "_run", None)',
        'delattr(loop, "_run")',
        "loop._BLOCK = 4",
        'code = "from moeprobe import run\\nrun._draw = lambda *_: None"',
    ],
)
def test_what_replaces_something_private_is_found(code: str) -> None:
    assert len(list(replaced(ast.parse(code)))) == 1
