"""Every command and every plug-in is in the documentation, and every documented command parses."""

import pytest

from moeprobe.models import config_files, grid
from moeprobe.results.tables import COLUMNS, COMPARISON_COLUMNS
from moeprobe.runtime import catalog
from moeprobe.studies.tradeoff.table import TRADEOFF_COLUMNS
from tests.docs.pages import COMMANDS, documented_commands, help_examples, text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_and_has_an_example(name: str) -> None:
    assert name in {command[0] for command in documented_commands()}
    assert f"Example: `moeprobe {name}" in COMMANDS[name].help
    assert f"`{name}`" in text("guide/first-steps.md").partition("## Which command answers what")[2]
    for parameter in COMMANDS[name].params:
        assert parameter.name == "help" or parameter.help, f"{name}: {parameter.name} is not explained"


@pytest.mark.parametrize("command", documented_commands() + help_examples(), ids=" ".join)
def test_every_documented_command_parses(command: list[str]) -> None:
    """Options and arguments exist; nothing is run."""
    parsed = COMMANDS[command[0]].make_context(command[0], command[1:], resilient_parsing=False)
    assert parsed.params


@pytest.mark.parametrize(
    ("plugins", "page"),
    [
        (catalog.VIEWS, "plugins"),
        (catalog.DATA, "plugins"),
        (catalog.OBJECTIVES, "plugins"),
        (catalog.ROUTERS, "routers"),
        (catalog.ANALYSES, "plugins"),
        (catalog.ADAPTERS, "plugins"),
    ],
)
def test_every_plugin_is_named(plugins: catalog.Catalog, page: str) -> None:
    for name in plugins.names():
        assert f"`{name}`" in text(f"reference/{page}.md"), name


def test_every_configuration_is_named() -> None:
    for name in [*config_files.names(), *grid.names()]:
        assert f"`{name}`" in text("reference/configurations.md"), name


def test_every_column_is_described() -> None:
    for name, meaning in (COLUMNS | COMPARISON_COLUMNS | TRADEOFF_COLUMNS).items():
        assert f"| `{name}` | {meaning} |" in text("reference/columns.md"), name
