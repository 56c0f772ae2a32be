"""What the README says is there, and what is there is in the README."""

import importlib
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.main import get_command

from moeprobe.adapters.hooks.settings import FileSettings
from moeprobe.cli.app import app
from moeprobe.models import config_files, grid
from moeprobe.results.tables import COLUMNS, COMPARISON_COLUMNS
from moeprobe.runtime import catalog
from moeprobe.studies.paper.tables import markdown
from moeprobe.studies.tradeoff.table import TRADEOFF_COLUMNS
from tests.commands import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def flat(commands: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Commands by what is typed; those of a group by the group's name and theirs."""
    found: dict[str, Any] = {}
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{above}{name}": command} if inner is None else flat(inner, f"{above}{name} ")
    return found


COMMANDS = flat(get_command(app).commands)  # type: ignore[attr-defined]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def documented_commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("moeprobe ")]
    return [split(shlex.split(line, comments=True)[1:]) for line in lines]


def split(words: list[str]) -> list[str]:
    """The command as one word, and its arguments."""
    size = 1 if words[0] in COMMANDS else 2
    return [" ".join(words[:size]), *words[size:]]


def help_examples() -> list[list[str]]:
    examples = [
        re.search(r"Example: `moeprobe (.*?)`", command.help or "", re.DOTALL)
        for command in COMMANDS.values()
    ]
    return [split(shlex.split(" ".join(example[1].split()))) for example in examples if example]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_and_has_an_example(name: str) -> None:
    assert name in {command[0] for command in documented_commands()}
    assert f"Example: `moeprobe {name}" in COMMANDS[name].help
    assert re.search(rf"^\* .*`{name}`", README, flags=re.MULTILINE), "no line says what it does"
    for parameter in COMMANDS[name].params:
        assert parameter.name == "help" or parameter.help, f"{name}: {parameter.name} is not explained"


@pytest.mark.parametrize("command", documented_commands() + help_examples(), ids=" ".join)
def test_every_documented_command_parses(command: list[str]) -> None:
    """Options and arguments exist; nothing is run."""
    parsed = COMMANDS[command[0]].make_context(command[0], command[1:], resilient_parsing=False)
    assert parsed.params


@pytest.mark.parametrize(
    "plugins",
    [catalog.VIEWS, catalog.DATA, catalog.OBJECTIVES, catalog.ROUTERS, catalog.ANALYSES, catalog.ADAPTERS],
)
def test_every_plugin_is_named(plugins: catalog.Catalog) -> None:
    for name in plugins.names():
        assert f"`{name}`" in README, name


def test_every_configuration_is_named() -> None:
    for name in [*config_files.names(), *grid.names()]:
        assert f"`{name}`" in README, name


def test_every_column_is_described() -> None:
    for name, meaning in (COLUMNS | COMPARISON_COLUMNS | TRADEOFF_COLUMNS).items():
        assert f"| `{name}` | {meaning} |" in README, name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_pages_are_of_a_readable_size_and_name_files_that_exist() -> None:
    for page in PAGES[1:]:
        text = page.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 220, page
        for name in re.findall(
            r"`((?:cli|probes|studies|adapters|results|metrics|models|inputs|routing|runtime)/[\w/.]*)`", text
        ):
            assert (ROOT / "moeprobe" / name).exists(), name


def test_the_notebook_example_runs(
    trained: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name, folder in trained.items():
        (tmp_path / "checkpoints" / f"demo-{name}").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "blocks.3" in printed
    assert "ci_low" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints"}, "the example wrote something"


def test_a_model_of_ones_own_is_probed_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "my_models.py").write_text(
        "from moeprobe.adapters.hooks import Hooks\nfrom tests.adapters import zoo\nvit, net = zoo.vit, zoo.vit()\n"
        "def hooked():\n    return Hooks(net, **zoo.VIT)\n"
    )
    (settings,) = [block for block in blocks("yaml") if block.startswith("# vit.yaml")]
    (tmp_path / "vit.yaml").write_text(settings)
    found: dict[str, Any] = {}
    notebook, example = blocks("python")
    assert "load_model" in notebook and len(example.split("\n\n")[1].splitlines()) == 2
    exec(compile(example, "README.md", "exec"), found)
    assert set(found["result"].table["checkpoint"]) == {"mine"}
    commands = [command for command in documented_commands() if any("py:" in word for word in command)]
    assert [command[0] for command in commands] == ["inspect", "noise-sweep"]
    assert "blocks.3.mlp.gate" in run(*commands[0]).output
    assert "2 checkpoints x 50 images" in run(*commands[1], "--dry-run").output
    keys = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|( `.*?)\|", README, flags=re.MULTILINE))))
    assert set(FileSettings.model_fields) <= keys


@pytest.fixture
def regenerating(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what imports a script of ``reports`` as a module; they import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "reports"))
    return importlib.import_module


def test_the_tables_of_the_readme_are_those_of_the_reports(regenerating: Callable[[str], Any]) -> None:
    readme = regenerating("readme")
    blocks = re.findall(r"<!-- from ([^:\n]+): ([^\n]+) -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    assert {folder for folder, *_ in blocks} == {
        "reports/digits", "reports/shapes", "reports/routers/digits", "reports/routers/shapes",
    }  # fmt: skip
    assert {name for _, name, _ in blocks} == set(readme.MAKERS)
    assert all(body.count("\n|") >= 2 for *_, body in blocks)
    assert readme.filled(README) == README, "run: python reports/readme.py"


def test_a_number_that_is_changed_by_hand_is_put_right(regenerating: Callable[[str], Any]) -> None:
    readme = regenerating("readme")
    block = re.search(r"<!-- from reports/digits: the first seed -->.*?<!-- end -->", README, flags=re.DOTALL)
    assert block is not None
    wrong = README.replace(block[0], re.sub(r"0\.\d+", "0.123", block[0]))
    assert wrong != README and readme.filled(wrong) == README


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_the_papers_tables_are_those_of_the_numbers(data: str, regenerating: Callable[[str], Any]) -> None:
    folder = ROOT / "reports" / data
    table = pd.read_csv(folder / "seeds.csv").fillna({"layer": ""})
    text = markdown(
        table, pd.read_csv(folder / "load.csv"), data=data, remarks=regenerating("regenerate").REMARKS
    )
    assert (folder / "tables.md").read_text(encoding="utf-8") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted((ROOT / "reports" / "routers").iterdir()), ids=lambda path: path.name
)
def test_the_numbers_of_the_routers_are_those_of_their_reports(
    folder: Path, regenerating: Callable[[str], Any]
) -> None:
    routers = regenerating("regenerate_routers")
    table, differing = routers.read(folder)
    assert (folder / "tables.md").read_text(encoding="utf-8") == routers.tables(table, differing)
    # What the tables follow from is kept: sums per image, training curves, and no weights.
    cells = {path.name for path in (folder / "cells").iterdir()}
    assert cells == set(table["checkpoint"])
    for name in cells:
        assert (folder / "cells" / name / "metrics.csv").is_file()
        assert (folder / "cells" / name / "noise" / "images.parquet").is_file()
    assert not list(folder.rglob("*.safetensors"))


def test_nothing_is_left_to_fill_in() -> None:
    markers = re.compile(r"<!-- (from [^:\n]+: [^\n]+|end) -->")
    assert "<!--" not in markers.sub("", README)
