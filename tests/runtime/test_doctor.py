"""What ``doctor`` looks for is what the package needs."""

import re
import tomllib
from pathlib import Path

from moeprobe.runtime import doctor

ROOT = Path(__file__).parents[2]


def test_all_that_is_required_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[<>=]", one)[0] for one in project["dependencies"]}
    assert {finding.subject for finding in doctor.examine()} >= required
