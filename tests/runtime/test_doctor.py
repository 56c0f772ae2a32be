"""What ``doctor`` looks for is what the package needs."""

import re
import tomllib
from pathlib import Path

import pytest

from moeprobe.cli.commands import doctor
from moeprobe.runtime import torchvision_compat

ROOT = Path(__file__).parents[2]


def test_all_that_is_required_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[<>=]", one)[0] for one in project["dependencies"]}
    assert {finding.subject for finding in doctor.examine()} >= required


def test_a_torchvision_that_cannot_be_imported_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"{name}: undefined symbol: x.\nmore")

    monkeypatch.setattr(torchvision_compat, "import_with_operators", fail)
    finding = next(one for one in doctor.examine() if one.subject == "torch and torchvision")
    assert finding.level == "wrong" and finding.text.endswith("fails: torchvision: undefined symbol: x")
