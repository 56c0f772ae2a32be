"""Docstrings speak of names that exist: a parameter that was renamed leaves no old name behind."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import moeprobe
from tests.sources import tree_of

PACKAGE = Path(moeprobe.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# What files speak of without having it in their code: names of other programs and formats, values, fields of others.
ELSEWHERE = {
    "adamw", "b", "column", "crop_fraction",
    "feature_weight", "j", "kl_weight", "nohup", "per_token", "repr",
    "representation_size", "rest",
    "routed_experts", "save_pretrained", "save_to_disk", "sgd", "sigmoid", "sofmax", "stat", "std", "test",
    "top1_match", "transformers", "umask", "val", "valid",
}  # fmt: skip


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """Yield the functions and classes that have a docstring, with it."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node, text


def described(text: str, heading: str) -> set[str]:
    """Return the names that a section of a docstring describes: ``name: ...`` or ``one, two: ...``."""
    section = re.search(rf"^{heading}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    lines = re.findall(r"^    ((?:\w+, )*\w+): ", section[1], re.MULTILINE) if section else []
    return {name for line in lines for name in line.split(", ")}


def parameters(node: Documented) -> set[str]:
    """Return what a function takes, or a class: what its ``__init__`` takes, and its fields."""
    if isinstance(node, ast.ClassDef):
        made = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
        fields = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}  # type: ignore[union-attr]
        return fields.union(*map(parameters, made))
    given = node.args
    several = [argument for argument in (given.vararg, given.kwarg) if argument is not None]
    return {item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)}


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that objects of a class have: fields, constants, properties, and what methods assign."""
    names = parameters(node)
    for item in node.body:
        if isinstance(item, ast.Assign):
            names |= {target.id for target in item.targets if isinstance(target, ast.Name)}
        if isinstance(item, ast.FunctionDef):
            names |= {item.name, *(made.attr for made in ast.walk(item) if isinstance(made, ast.Attribute))}
    return names


def wrongly_described(tree: ast.Module) -> list[str]:
    """Return what a section describes and its function or class does not have."""
    wrong = []
    for node, text in documented(tree):
        unknown = described(text, "Args") - parameters(node)
        if isinstance(node, ast.ClassDef):
            unknown |= described(text, "Attributes") - attributes(node)
        wrong += [f"{node.name}: {name}" for name in sorted(unknown)]
    return wrong


def words_of(tree: ast.Module) -> set[str]:
    """Return the names in a module's code, and the words of its strings that are no sentence."""
    docstrings = {id(node.body[0].value) for node, _ in documented(tree)}  # type: ignore[attr-defined]
    words: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name))
            ):
                words.add(name)
            case ast.alias(name=name):
                words |= {*name.split("."), node.asname or ""}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                words.add(name)
            case ast.Constant(value=str(text)) if id(node) not in docstrings and " " not in text:
                words |= set(re.findall(r"\w+", text))
    return words


@cache
def public_words() -> frozenset[str]:
    """Names that any file may speak of: modules, what they define, columns, and parameters of the API."""
    words = {path.stem for path in FILES} | {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    for path in FILES:
        words |= {node.name for node in tree_of(path).body if isinstance(node, Documented)}
    for path in PACKAGE / "results" / "columns.py", *(PACKAGE / "api").glob("*.py"):
        words |= words_of(tree_of(path))
    return frozenset(words)


def wrongly_quoted(tree: ast.Module, elsewhere: frozenset[str] | set[str]) -> list[str]:
    """Return the words in double backticks that are neither in a module's code nor ``elsewhere``."""
    known = words_of(tree) | elsewhere
    return [
        f"{node.name}: {word}"
        for node, text in documented(tree)
        for word in re.findall(r"``([a-z_]\w*)``", text)
        if word not in known
    ]


def test_docstrings_speak_of_names_that_exist() -> None:
    elsewhere = public_words() | ELSEWHERE
    assert not [
        f"{path.relative_to(PACKAGE)}: {wrong}"
        for path in FILES
        for wrong in wrongly_described(tree_of(path)) + wrongly_quoted(tree_of(path), elsewhere)
    ]


def test_names_from_elsewhere_are_spoken_of() -> None:
    quoted = {
        word
        for path in FILES
        for _, text in documented(tree_of(path))
        for word in re.findall(r"``([a-z_]\w*)``", text)
    }
    assert quoted - public_words() >= ELSEWHERE


FUNCTION = '''
def add(first, *rest, cached_sums=()):
    """Add; ``first`` counts twice.

    Args:
        first: a number.
        rest: more numbers,
            if any: there may be none.
        cached_sums: earlier ones.
    """
'''
CLASS = '''
class Trials:
    """Trials.

    Args:
        image: of each.
    """

    def __init__(self, image):
        self.image = image


class Pair:
    """A pair.

    Attributes:
        one, other: two things.
    """

    one: int
    other: int
'''


@pytest.mark.parametrize(
    ("source", "before", "after", "left_behind"),
    [
        (FUNCTION, "(first", "(summand", ["add: first"]),
        (FUNCTION, "*rest", "*numbers", ["add: rest"]),
        (FUNCTION, "cached_sums=", "sums=", ["add: cached_sums"]),
        (CLASS, "(self, image)", "(self, images)", ["Trials: image"]),
        (CLASS, "other: int", "another: int", ["Pair: other"]),
    ],
)
def test_a_renamed_parameter_is_found(source: str, before: str, after: str, left_behind: list[str]) -> None:
    assert not wrongly_described(ast.parse(source)) and not wrongly_quoted(ast.parse(source), frozenset())
    renamed = ast.parse(source.replace(before, after))
    assert wrongly_described(renamed) == left_behind
    assert bool(wrongly_quoted(renamed, frozenset())) == (before == "(first")
