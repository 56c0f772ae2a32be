"""What ``doctor`` looks for is what the package needs."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from moeprobe.cli.commands import doctor
from moeprobe.runtime import torchvision_compat

ROOT = Path(__file__).parents[2]


def test_all_that_is_required_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[<>=]", one)[0] for one in project["dependencies"]}
    assert {finding.subject for finding in doctor.examine()} >= required


def test_a_version_that_is_not_taken_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ["torch>=99", "nowhere>=1", 'transformers>=99; extra == "hf"', 'elsewhere>=1; extra == "hf"']
    monkeypatch.setattr(metadata, "requires", lambda _: [*stated, 'pytest>=99; extra == "dev"'])
    found = {one.subject: (one.level, one.text) for one in doctor.examine() if one.subject != "moeprobe"}
    torch, transformers = (metadata.version(name) for name in ("torch", "transformers"))
    assert found == {
        "torch": ("wrong", f"{torch} does not fit >=99: pip install -U 'torch>=99'"),
        "nowhere": ("wrong", "is missing: pip install -U 'nowhere>=1'"),
        "transformers": (
            "note",
            f"{transformers} does not fit >=99: pip install -c constraints.txt -e '.[hf]'",
        ),
        "elsewhere": ("note", "is not installed (optional): pip install -c constraints.txt -e '.[hf]'"),
    }


def test_packages_of_a_folder_that_is_not_installed_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", nowhere)
    finding = next(one for one in doctor.examine() if one.subject == "packages")
    assert finding.level == "note" and "not installed" in finding.text


def test_a_torchvision_that_cannot_be_imported_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"{name}: undefined symbol: x.\nmore")

    monkeypatch.setattr(torchvision_compat, "import_with_operators", fail)
    finding = next(one for one in doctor.examine() if one.subject == "torch and torchvision")
    assert finding.level == "wrong" and finding.text.endswith("fails: torchvision: undefined symbol: x")
