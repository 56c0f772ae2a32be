"""The messages on the page of error messages are messages of the program."""

import ast
import re

import pytest

from tests.docs.pages import ROOT, text

MESSAGES = re.findall(r"^\| `([^`]+)`", text("help/trouble.md"), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def strings() -> list[str]:
    """All strings of the package; what an f-string fills in is …."""
    found = []
    for path in (ROOT / "moeprobe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_in_the_program(message: str, strings: list[str]) -> None:
    fragments = [part.strip(" .;,:") for part in message.split("…")]
    for fragment in filter(None, fragments):
        assert any(fragment in string for string in strings), fragment
