"""Sentences of errors: options are spelled by each front end in its own way, in every place of the package."""

import ast
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import moeprobe
from moeprobe import api
from moeprobe.cli.app import app
from moeprobe.declarations import registry
from moeprobe.declarations.fields import fields_of
from moeprobe.errors import FinishedError, UserError, already_finished, option
from moeprobe.integrations import RoutingMonitor
from tests.sources import tree_of

_PACKAGE = Path(moeprobe.__file__).parent
# A whole command is an example for a shell.
_COMMANDS = re.compile(r"(moeprobe|python -m \S+|docker run) [^.;,]*(\.\.\. [^.;,]*)?")


@pytest.mark.parametrize(
    ("named", "typed", "python"),
    [
        (option("limit"), "--limit", "limit"),
        (option("group_images", 1), "--group-images 1", "group_images=1"),
        (option("severity", 0.5), "--severity 0.5", "severity=0.5"),
        (option("overwrite", True), "--overwrite", "overwrite=True"),
        (option("data", "folder:PATH"), "--data folder:PATH", 'data="folder:PATH"'),
        (option("out", Path("a/b")), "--out a/b", 'out="a/b"'),
        (
            option("trained_capacity", True, "--capacity trained"),
            "--capacity trained",
            "trained_capacity=True",
        ),
        (option("files", ["a.png"], "--file a.png"), "--file a.png", 'files=["a.png"]'),
        (option("api.downloads()", flag="--download"), "--download", "api.downloads()"),
    ],
)
def test_an_option_in_both_spellings(named: str, typed: str, python: str) -> None:
    error = UserError(f"First {named}; then run moeprobe sweep --view x.")
    assert error.sentence == f"First {typed}; then run moeprobe sweep --view x."
    assert str(error) == f"First {python}; then run moeprobe sweep --view x."


def test_an_error_inside_of_another_keeps_both_spellings() -> None:
    inner = UserError(f"add {option('overwrite', True)}.")
    outer = UserError(f"In the cell a: {inner}")
    assert (outer.sentence, str(outer)) == (
        "In the cell a: add --overwrite.",
        "In the cell a: add overwrite=True.",
    )


def test_a_warning_in_both_spellings() -> None:
    assert str(already_finished("out")) == "out is finished; add overwrite=True to repeat it."
    # As Python's own ``warnings`` prints it.
    assert f"{already_finished('out')}" == str(already_finished("out"))
    lines = (
        "import warnings",
        "from moeprobe.cli.front.environment import prepare",
        "from moeprobe.errors import already_finished",
        "prepare([])",
        "warnings.warn(already_finished('out'))",
    )
    done = subprocess.run([sys.executable, "-c", ";".join(lines)], capture_output=True, text=True, check=True)
    assert done.stderr == "Warning: out is finished; add --overwrite to repeat it.\n"


def test_an_error_from_another_process_keeps_both_spellings() -> None:
    error = pickle.loads(pickle.dumps(FinishedError(f"add {option('overwrite', True)}.", Path("a"))))
    assert (error.sentence, str(error), error.folder) == (
        "add --overwrite.",
        "add overwrite=True.",
        Path("a"),
    )


def test_no_error_writes_an_option_by_hand() -> None:
    by_hand = [
        f"{path.relative_to(_PACKAGE)}:{call.lineno}: {text}"
        for path, tree in _files()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call).endswith(("Error", "Fault"))
        and re.search(r"(?<![\w-])--[a-z]", _COMMANDS.sub("", text := "".join(_texts(call))))
    ]  # fmt: skip
    assert not by_hand


def test_every_named_option_exists_in_both_front_ends() -> None:
    flags, keywords = _flags(), _keywords()
    monitored = inspect.signature(RoutingMonitor).parameters
    places = [
        (f"{path.relative_to(_PACKAGE)}:{call.lineno}", call)
        for path, tree in _files()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call) == "option"
    ]
    assert len(places) > 150
    unknown = []
    for place, call in places:
        if not isinstance(call.args[0], ast.Constant):
            continue  # a name that is read off a declaration
        keyword = str(call.args[0].value)
        if place.startswith("integrations/"):  # they have no command
            unknown += [f"{place}: {keyword} is no argument of the monitor"] * (keyword not in monitored)
            continue
        given = [*call.args[2:], *(one.value for one in call.keywords if one.arg == "flag")]
        text = given[0].value if given and isinstance(given[0], ast.Constant) else ""
        flag = str(text).partition(" ")[0] or f"--{keyword.replace('_', '-')}"
        if flag not in flags:
            unknown.append(f"{place}: {flag} is no option of a command")
        if keyword not in {*keywords, "dry_run"}:  # Python has functions that plan instead
            unknown.append(f"{place}: {keyword} is no argument of the API")
    assert not unknown


def _files() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(_PACKAGE.rglob("*.py")):
        if path.relative_to(_PACKAGE).parts[0] != "cli":
            yield path, tree_of(path)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the strings of an expression in their order, without arguments of ``option``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name | ast.Attribute):
        yield "VALUE"
    elif not (isinstance(node, ast.Call) and _name(node) == "option"):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _flags() -> set[str]:
    waiting, flags = [get_command(app)], {"--plugins"}  # read before there are commands
    while waiting:
        command = waiting.pop()
        flags |= {flag for parameter in command.params for flag in parameter.opts}
        waiting += getattr(command, "commands", {}).values()
    return flags


def _keywords() -> set[str]:
    public = [getattr(api, name) for name in api.__all__]
    names = {f"api.{name}" for name in api.__all__} | {f"api.{name}()" for name in api.__all__}
    for thing in public:
        if callable(thing) and not (isinstance(thing, type) and issubclass(thing, Exception)):
            names |= {*inspect.signature(thing).parameters}
    for kind in registry.probes():
        names |= {*fields_of(kind)}
    return names
