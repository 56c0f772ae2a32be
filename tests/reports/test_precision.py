"""The report on rounded weights: its tables are those of its numbers, which are those of the probe."""

from pathlib import Path

import pandas as pd
import pytest

from reports.scripts import regenerate_precision

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports" / "precision"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_tables_are_those_of_the_numbers() -> None:
    tables = {path.stem: pd.read_csv(path) for path in sorted(REPORTS.glob("*.csv"))}
    text = regenerate_precision.tables(tables)
    assert (REPORTS / "tables.md").read_text(encoding="utf-8") == text
    assert sum(line.startswith("|") for line in text.splitlines()) == 2 * 2 + 5 * (2 + 1)
    assert all((REPORTS / f"{name}.png").exists() for name in tables)


@pytest.mark.slow
@pytest.mark.promise
def test_the_numbers_are_those_of_the_probe() -> None:
    result = regenerate_precision.digits(limit=24, checkpoints=["digits-prc-k2-seed0"])
    kept = regenerate_precision.numbers(result).set_index(["part", "format", "layer", "metric"])["value"]
    match = result.table[(result.table["metric"] == "top2_set_match") & (result.table["tokens"] == "patch")]
    for row in match.to_dict("records"):
        part, form = row["view"].split(" ")
        assert kept[part, form, row["layer"], "chooses_otherwise"] == pytest.approx(1 - row["value"])
    assert len(match) == 25 * 2
