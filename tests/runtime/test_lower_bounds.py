"""The versions of ``make lower-bounds`` are those that pyproject.toml allows."""

import pytest

from benchmarks.lower_bounds import PROJECT, lowest

TEXT = """
[project]
dependencies = ["numpy>=2.0", "torch>=2.10"]
[project.optional-dependencies]
hf = ["transformers>=5.20"]
docs = ["mkdocs>=1.6,<2"]
dev = ["POT>=0.9.5", "ruff>=0.8", "transformers>=5.20", "numpy>=2.0"]
"""


def test_every_bound_once_and_what_must_come_later_by_itself() -> None:
    assert lowest(TEXT) == ["POT==0.9.5", "numpy==2.0", "torch==2.10"]
    assert lowest(TEXT, extra="hf") == ["transformers==5.20"]


def test_all_that_moeprobe_needs_has_a_bound() -> None:
    found = lowest(PROJECT.read_text(encoding="utf-8"))
    names = [pin.partition("==")[0] for pin in found]
    assert len({*names}) == len(names) and {"torch", "typer", "pytest", "datasets"} <= {*names}
    with pytest.raises(AssertionError, match="numpy has no lower bound"):
        lowest(TEXT.replace("numpy>=2.0", "numpy"))
