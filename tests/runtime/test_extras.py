"""The command that installs an extra works for how moeprobe is installed."""

import json
import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from moeprobe.runtime import extras

ROOT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A moeprobe in site-packages, with nothing above it."""
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages/moeprobe/runtime/extras.py"))
    return tmp_path


def installed_from(monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return content if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda _: Installed())


def test_a_clone_is_installed_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert extras.install_command("video") == "pip install -c constraints.txt -e '.[video]'"
    monkeypatch.chdir(tmp_path)
    words = shlex.split(extras.install_command("video"))
    assert words == ["pip", "install", "-c", f"{ROOT}/constraints.txt", "-e", f"{ROOT}[video]"]


def test_a_folder_that_was_installed_from_is_used_again(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = elsewhere / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    installed_from(monkeypatch, json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    assert shlex.split(extras.install_command("wandb")) == ["pip", "install", f"{clone}[wandb]"]
    (clone / "constraints.txt").touch()
    assert shlex.split(extras.install_command("wandb"))[2:4] == ["-c", f"{clone}/constraints.txt"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[]",
        '{"url": 3, "dir_info": {}}',
        '{"url": "file:///gone", "dir_info": {"editable": true}}',
        '{"url": "file:///a.whl", "archive_info": {}}',
    ],
)
def test_without_a_folder_the_packages_are_named(
    content: str | None, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from(monkeypatch, content)
    monkeypatch.setattr(
        metadata, "requires", lambda _: ["torch>=2", 'av>=14; extra == "video"', 'x; extra == "y"']
    )
    assert extras.install_command("video") == "pip install 'av>=14'"


def test_no_message_or_page_installs_moeprobe_by_its_name() -> None:
    """The name on an index may be anybody's."""
    paths = [*ROOT.glob("moeprobe/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    assert len(paths) > 100
    by_name = re.compile(r"moeprobe\[|pip install (-\S+ )*'?moeprobe\b")
    assert [str(path) for path in paths if by_name.search(path.read_text(encoding="utf-8"))] == []
