"""Every command is in the guide and in the reference, and every documented command parses."""

import re

import pytest

from moeprobe.runtime import catalog
from tests.docs.pages import COMMANDS, ROOT, documented_commands, text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_and_has_an_example(name: str) -> None:
    assert any(name == command[0] for command in documented_commands("guide"))
    assert f"Example: `moeprobe {name}" in COMMANDS[name].help
    assert f"`{name}`" in text("guide/which-command.md")
    for parameter in COMMANDS[name].params:
        assert parameter.name == "help" or parameter.help, f"{name}: {parameter.name} is not explained"


def test_every_command_of_the_table_exists() -> None:
    cells = re.findall(r"^\|[^|]+\|([^|]+)\|", text("guide/which-command.md"), re.M)
    # Beside commands the cells name options of them, and a class of the API.
    typed = {name for cell in cells for name in re.findall(r"`([a-z][^`]+)`", cell)}
    assert len(typed) > 40
    targets = {f"make {name}" for name in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)}
    # An option of a command may stand behind it.
    assert {re.split(r" -| [A-Z]", name)[0] for name in typed} <= {*COMMANDS} | targets


@pytest.mark.parametrize("command", documented_commands(), ids=" ".join)
def test_every_documented_command_parses(command: list[str]) -> None:
    """Options and arguments exist; nothing is run."""
    parsed = COMMANDS[command[0]].make_context(command[0], command[1:], resilient_parsing=False)
    assert parsed.params


@pytest.mark.parametrize(
    ("plugins", "page"),
    [
        (catalog.ROUTERS, "reference/routers.md"),
        (catalog.DATA, "guide/data.md"),
        (catalog.READERS, "guide/recorded-routing.md"),
    ],
)
def test_every_plugin_of_a_page_written_by_hand_is_named(plugins: catalog.Catalog, page: str) -> None:
    for name in plugins.names():
        assert f"`{name}`" in text(page), name
