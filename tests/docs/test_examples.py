"""The examples of the pages run as they are printed."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from moeprobe.adapters.hooks.settings import FileSettings
from tests.commands import run
from tests.docs.pages import PAGES, README, ROOT, TEXT, blocks, documented_commands, name_of, text

NOTEBOOK = ROOT / "docs" / "guide" / "python.md"
OWN_MODEL = ROOT / "docs" / "guide" / "own-model.md"


def test_every_python_block_is_run_here() -> None:
    by_hand = [page for page in PAGES if "<!-- written by docs/generate.py" not in TEXT[page]]
    assert {page: len(blocks("python", page)) for page in by_hand if blocks("python", page)} == {
        README: 1, NOTEBOOK: 1, OWN_MODEL: 1,
    }  # fmt: skip


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
    (example,) = blocks("python", NOTEBOOK)
    exec(compile(example, "python.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "blocks.3" in printed
    assert "ci_low" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints"}, "the example wrote something"


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module that the examples import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    (tmp_path / "my_models.py").write_text(
        "from moeprobe.adapters.hooks import Hooks\nfrom tests.adapters import zoo\nvit, net = zoo.vit, zoo.vit()\n"
        "def hooked():\n    return Hooks(net, **zoo.VIT)\n"
    )
    return tmp_path


@pytest.mark.parametrize("page", [README, OWN_MODEL], ids=name_of)
def test_a_model_of_ones_own_is_probed_as_the_pages_say(page: Path, my_models: Path) -> None:
    (example,) = blocks("python", page)
    made: dict[str, Any] = {}
    exec(compile(example, str(page), "exec"), made)
    assert set(made["result"].table["checkpoint"]) == {"mine"}
    assert len(example.splitlines()) <= 10


def test_a_model_of_ones_own_is_probed_on_the_command_line(my_models: Path) -> None:
    (settings,) = blocks("yaml", OWN_MODEL)
    assert settings.startswith("# vit.yaml")
    (my_models / "vit.yaml").write_text(settings)
    commands = [command for command in documented_commands() if any("py:" in word for word in command)]
    assert [command[0] for command in commands] == ["inspect", "noise-sweep"]
    assert "blocks.3.mlp.gate" in run(*commands[0]).output
    assert "2 checkpoints x 50 images" in run(*commands[1], "--dry-run").output


def test_every_setting_of_a_model_of_ones_own_is_explained() -> None:
    first_cells = re.findall(r"^\|( `.*?)\|", text("guide/own-model.md"), flags=re.MULTILINE)
    assert set(FileSettings.model_fields) <= set(re.findall(r"`(\w+)`", "".join(first_cells)))
