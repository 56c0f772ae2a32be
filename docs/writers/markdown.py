"""Tables, docstrings and signatures as Markdown that GitHub and the site render alike."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack, get_args, get_origin

_WIDTH = 100
# Sections of a docstring that become a list, and those that become a sentence.
_LISTED = ("Args:", "Attributes:")
_SENTENCES = ("Returns:", "Yields:", "Raises:")


def page(title: str, source: str, *parts: str) -> str:
    """Return a page: its title, what it is written from, its parts with a blank line between them."""
    note = f"<!-- written by docs/generate.py from {source} -->"
    return "\n\n".join([f"# {title}", note, *(part.strip("\n") for part in parts if part)]) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar in a cell does not end it."""
    lines = [_row(headings), f"|{'---|' * len(headings)}", *map(_row, rows)]
    return "\n".join(lines)


def code(text: str) -> str:
    """Return a text in code style; "" stays empty."""
    return f"`{text}`" if text else ""


def inline(text: str) -> str:
    """Return a line of a docstring: two backquotes are one, and what looks like a tag stays text."""
    text = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", text)
    )


def docstring(text: str) -> str:
    """Return a docstring in Google's style: paragraphs, what is listed as a list, code as blocks."""
    parts: list[str] = []
    code_before = False
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        is_code = block.startswith(("    ", ">>> "))
        first, _, rest = block.partition("\n")
        if is_code and code_before:
            parts[-1] = f"{parts[-1].removesuffix('```')}\n{textwrap.dedent(block)}\n```"
        elif is_code:
            parts.append(f"```python\n{textwrap.dedent(block)}\n```")
        elif first.strip() in _LISTED:
            parts.append("\n".join(f"* {_entry(entry)}" for entry in _entries(rest)))
        elif first.strip() in _SENTENCES:
            parts.append(f"{first.strip().removesuffix(':')} {'; '.join(map(_entry, _entries(rest)))}")
        else:
            parts.append(inline(block))
        code_before = is_code
    return "\n\n".join(parts)


def first_sentence(text: str) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return inline(inspect.cleandoc(text).split("\n\n")[0])


def signature(function: Callable[..., Any], name: str) -> str:
    """Return how a function is called, as its source says it: on one line, or on several where that is long."""
    from writers.stubs import is_made, stub

    plain = inspect.unwrap(function)
    source = stub(name, function) if is_made(function) else textwrap.dedent(inspect.getsource(plain))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    # An annotation in quotes is one all the same.
    returns = " -> " + ast.unparse(node.returns).strip("'") if node.returns else ""
    defaults = {
        one.name: one.default for one in inspect.signature(inspect.unwrap(function)).parameters.values()
    }
    arguments = _arguments(node.args, defaults)
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= _WIDTH:
        return line
    lines = [""]
    for one in arguments:
        if len(f"    {lines[-1]}, {one},") <= _WIDTH:
            lines[-1] += f"{', ' if lines[-1] else ''}{one}"
        else:
            lines.append(one)
    inner = ",\n    ".join(line for line in lines if line)
    return f"{name}(\n    {inner},\n){returns}"


def annotation(kind: Any) -> str:
    """Return an annotation as source has it, without the modules of its names."""
    if isinstance(kind, str):
        return kind
    if get_origin(kind) is Unpack:
        return f"Unpack[{get_args(kind)[0].__name__}]"
    plain = isinstance(kind, type) and not getattr(kind, "__args__", ())
    text = kind.__name__ if plain else str(kind)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _arguments(arguments: ast.arguments, defaults: Mapping[str, object]) -> list[str]:
    """Return the arguments of a function as they are written, with the values of ``defaults``, and the bare star."""

    def written(argument: ast.arg, default: ast.expr | None) -> str:
        if default is None:
            return ast.unparse(argument)
        # A default that has a name is shown by its value, where that says more.
        value = defaults[argument.arg]
        text = repr(value) if isinstance(value, int | float | str | tuple) else ast.unparse(default)
        return f"{ast.unparse(argument)}{' = ' if argument.annotation else '='}{text}"

    plain = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    listed = [written(*pair) for pair in zip(plain, [*missing, *arguments.defaults], strict=True)]
    if arguments.vararg or arguments.kwonlyargs:
        listed.append(f"*{ast.unparse(arguments.vararg)}" if arguments.vararg else "*")
    listed += [written(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [*listed, f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else listed


def _entries(text: str) -> list[str]:
    """Return the entries of a section."""
    return re.split(r"\n(?=\S)", textwrap.dedent(text))


def _entry(entry: str) -> str:
    """Return an entry, ``name: meaning``."""
    name, colon, meaning = entry.partition(": ")
    if colon and re.fullmatch(r"\*{0,2}[\w., ]+", name):
        return f"`{name}`: {inline(meaning)}"
    return inline(entry)


def _row(cells: Sequence[str]) -> str:
    escaped = (re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells)
    return f"| {' | '.join(escaped)} |"
