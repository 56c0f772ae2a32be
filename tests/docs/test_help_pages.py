"""The messages on the page of error messages are messages of the program."""

import ast
import re

import pytest

from moeprobe.errors import UserError, option
from tests.docs.pages import ROOT, text
from tests.sources import tree_of

MESSAGES = re.findall(r"^\| `([^`]+)`", text("help/trouble.md"), flags=re.MULTILINE)


def spelled(part: ast.expr) -> str:
    """A part of an f-string as the command line prints it; … where only a run can know."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    match part:
        case ast.FormattedValue(ast.Call(ast.Name("option"), arguments, [])):
            try:
                return UserError(option(*map(ast.literal_eval, arguments))).sentence
            except ValueError:
                return "…"
    return "…"


@pytest.fixture(scope="module")
def strings() -> list[str]:
    """All strings of the package; what an f-string fills in is …."""
    found = []
    for path in (ROOT / "moeprobe").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(map(spelled, node.values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_in_the_program(message: str, strings: list[str]) -> None:
    fragments = [part.strip(" .;,:") for part in message.split("…")]
    for fragment in filter(None, fragments):
        assert any(fragment in string for string in strings), fragment
