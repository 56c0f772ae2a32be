"""What pages say in words: each claim stands on its page and follows from committed tables.

``claims/PAGE.yaml`` has ``constants``, ``definitions`` (expressions, or functions with their arguments) and ``claims``:
words of the page, and the expressions that must be true for them, in the words of facts.py.
"""

import functools
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from tests.docs.facts import HELPERS
from tests.docs.pages import ROOT, TEXT

FOLDER = Path(__file__).with_name("claims")
# Nothing but tables, and sentences about them that are written with them or that say how they are made.
WITHOUT_CLAIMS = {"layer-speed", "overview", "router-speed", "scale", "sources"}
LONGEST = 160
LOOSE = re.compile(r"\b(all|any)\(")


class Claims(BaseModel):
    """The claims of one page."""

    model_config = ConfigDict(extra="forbid")

    constants: dict[str, Any] = {}
    definitions: dict[str, str] = {}
    claims: dict[str, str | list[str]]


class Loader(yaml.SafeLoader):
    """YAML without repeated keys, of which the last would silently replace the others."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"more than once: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def page_of(file: Path) -> Path:
    return (ROOT / file.relative_to(FOLDER)).with_suffix(".md")


def said_on(page: Path) -> str:
    """The words of a page, whatever its line breaks."""
    return " ".join(TEXT[page].split())


def claims_of(file: Path) -> Claims:
    return Claims.model_validate(yaml.load(file.read_text(encoding="utf-8"), Loader))


@functools.cache
def names_of(file: Path) -> dict[str, Any]:
    """What expressions of a file may name: the helpers, what its page says, its constants and definitions."""
    read = claims_of(file)
    names = {"page": said_on(page_of(file)), **HELPERS, **read.constants}
    for name, expression in read.definitions.items():
        called, _, arguments = name.rstrip(")").partition("(")
        assert called not in names, f"{called} has a meaning already"
        names[called] = eval(f"lambda {arguments}: {expression}" if arguments else expression, names)
    return names


def check(words: str, expression: str, page: str, names: dict[str, Any]) -> None:
    """Hold that a page has words, and that an expression is true."""
    assert " ".join(words.split()) in page, "the page does not say this"
    found = eval(expression, names)
    assert isinstance(found, bool | np.bool_), f"{expression} is {found}, which is neither true nor false"
    assert found, expression


FILES = sorted(FOLDER.rglob("*.yaml"))
EVERY = [
    pytest.param(file, words, one, id=f"{file.stem}: {words[:60]} {number}")
    for file in FILES
    for words, expressions in claims_of(file).claims.items()
    for number, one in enumerate([expressions] if isinstance(expressions, str) else expressions)
]


@pytest.mark.parametrize(("file", "words", "expression"), EVERY)
def test_a_claim_is_on_its_page_and_true(file: Path, words: str, expression: str) -> None:
    check(words, expression, names_of(file)["page"], names_of(file))


def test_every_page_of_results_has_claims() -> None:
    results = {page.stem for page in TEXT if page.parent == ROOT / "docs/results"}
    assert results - {file.stem for file in FILES} == WITHOUT_CLAIMS
    assert {page_of(file) for file in FILES} <= set(TEXT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_claims_are_short_expressions_that_hold_of_something(file: Path) -> None:
    read = claims_of(file)
    for words, expressions in read.claims.items():
        own = [expressions] if isinstance(expressions, str) else expressions
        assert own and words.strip(), "a claim needs words and an expression"
    of_claims = [str(param.values[2]) for param in EVERY if param.values[0] == file]
    for expression in [*read.definitions.values(), *of_claims]:
        assert len(expression) <= LONGEST, expression
        assert not LOOSE.search(expression), f"{expression}: of nothing that is true, and every() fails"


@pytest.mark.parametrize(
    ("words", "expression", "problem"),
    [
        ("three seeds", "1 + 1 == 2", None),
        ("four seeds", "1 + 1 == 2", AssertionError),
        ("three seeds", "1 + 1 == 3", AssertionError),
        ("three seeds", "1 + 1", AssertionError),
        ("three seeds", "every([])", LookupError),
        ("three seeds", "every(value > 0 for value in [])", LookupError),
        ("three seeds", "ends([float('nan')], 2) == (0, 0)", LookupError),
        ("three seeds", "len(rows('digits/seeds.csv', number='no such number')) == 0", LookupError),
        ("three seeds", "len(rows('digits/no-such-file.csv')) > 0", FileNotFoundError),
    ],
)
def test_a_claim_that_is_wrong_fails(words: str, expression: str, problem: type[Exception] | None) -> None:
    with pytest.raises(problem) if problem else nullcontext():
        check(words, expression, "of three seeds", HELPERS)
