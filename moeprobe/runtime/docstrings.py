"""Docstrings in Google's style, as a screen shows them."""

import inspect
import re
import textwrap
from dataclasses import dataclass, field

_ARGUMENTS = "Args:"
_SECTIONS = (_ARGUMENTS, "Attributes:", "Returns:", "Yields:", "Raises:")


@dataclass(frozen=True)
class Docstring:
    """What a docstring says.

    Attributes:
        title: its first sentence.
        text: the paragraphs after it, without sections.
        arguments: what it takes, name -> meaning.
    """

    title: str
    text: str
    arguments: dict[str, str] = field(default_factory=dict)


def read(text: str) -> Docstring:
    """Return what a docstring says to a reader: its prose and its arguments, without marks of code."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("``", ""))
    paragraphs, arguments = [], dict[str, str]()
    for block in blocks:
        first, _, body = block.partition("\n")
        if first.strip() == _ARGUMENTS:
            for entry in re.split(r"\n(?=\S)", textwrap.dedent(body)):
                name, _, meaning = entry.partition(": ")
                arguments[name] = " ".join(meaning.split())
        elif first.strip() not in _SECTIONS:
            paragraphs.append(" ".join(block.split()))
    return Docstring(paragraphs[0] if paragraphs else "", "\n\n".join(paragraphs[1:]), arguments)
