"""The types of the functions that the API makes of declarations, for type checkers and editors."""

import inspect
import re
import textwrap
from typing import Any

from moeprobe.api import questions
from writers import markdown

HEADER = """# Written by docs/generate.py from the declarations of all questions.

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from moeprobe.adapters.base import Models
from moeprobe.declarations.options import Keywords, Options
{imports}
from moeprobe.runtime.progress import Progress

__all__ = {names}
"""


def files() -> dict[str, str]:
    """Return the stub file: its path below the repository, and its text."""
    names = sorted(questions.__all__)
    functions = {name: getattr(questions, name) for name in names}
    returned = sorted({str(inspect.signature(function).return_annotation) for function in functions.values()})
    imports = "\n".join(f"from {_module_of(name)} import {name}" for name in returned)
    listed = "[\n" + "".join(f'    "{name}",\n' for name in names) + "]"
    parts = [HEADER.format(imports=imports, names=listed)]
    parts += [stub(name, function) for name, function in functions.items()]
    return {"moeprobe/api/questions.pyi": "\n".join(parts)}


def is_made(function: Any) -> bool:
    """Whether a function is made of a declaration, so that no source says how it is called."""
    return getattr(function, "__module__", "") == questions.__name__


def stub(name: str, function: Any) -> str:
    """Return the declaration of one function, with its docstring."""
    signature = inspect.signature(inspect.unwrap(function))
    lines = [f"def {name}("]
    star = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        lines.append(f"    {stars}{parameter.name}: {markdown.annotation(parameter.annotation)}{default},")
    lines.append(f") -> {markdown.annotation(signature.return_annotation)}:")
    text = textwrap.indent(inspect.getdoc(function) or "", "    ")
    body = f'    """{text.strip()}\n    """'
    return "\n".join([*lines, re.sub(r"[ \t]+$", "", body, flags=re.M)]) + "\n"


def _module_of(name: str) -> str:
    """Return the module of a class that functions return, as the API imports it."""
    from moeprobe import api

    return str(getattr(api, name).__module__)
