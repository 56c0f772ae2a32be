"""What holds of every probe that runs unperturbed images in several variants."""

from pathlib import Path

import pandas as pd
import pytest

from tests.commands import Trained, run


@pytest.mark.parametrize(
    "words",
    [
        ("precision", "--formats", "int4_g128", "--parts", "router"),
        pytest.param(("determinism",), marks=[pytest.mark.slow, pytest.mark.promise]),
    ],
)
def test_compare_finds_every_null_in_the_sums(
    trained: Trained, tmp_path: Path, words: tuple[str, ...]
) -> None:
    name, *more = words
    asked = run(name, *trained.values(), *more, "--limit", 24, "--out", tmp_path / "run")
    assert asked.exit_code == 0, asked.output
    again = run("compare", tmp_path / "run", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.output
    before, after = (
        set(pd.read_csv(tmp_path / folder / "comparison.csv", keep_default_na=False)["null"])
        for folder in ("run", "again")
    )
    assert before == after and {"pooled", "position", "image"} <= before
