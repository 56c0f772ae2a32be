"""What the page on attacks says in words, held by the committed numbers."""

from typing import Any

import pandas as pd
import pytest

from reports.scripts import attack_tables
from tests.docs.pages import ROOT

REPORTS = ROOT / "reports" / "attack"
EPSILONS = (1, 2, 4, 8)


@pytest.fixture
def numbers() -> Any:
    table = attack_tables.read(REPORTS)

    def of(
        view: str, severity: float, metric: str, layer: str = "", *, difference: bool = False
    ) -> pd.DataFrame:
        found: pd.DataFrame = attack_tables.rows(table, metric, layer, view=view, severity=severity)
        found = found[(found["reference"] != "") == difference]
        assert len(found) == (3 if difference else 6) and (found["images"] == 360).all()
        return found

    return of


def test_the_answer_goes_before_the_routing(numbers: Any) -> None:
    assert numbers("attack", 8, "accuracy")["value"].max() < 0.02
    assert numbers("attack", 8, "top1_match", "blocks.1")["value"].min() > 0.65
    assert numbers("attack", 8, "top1_match", "blocks.3")["value"].between(0.4, 0.65).all()


def test_the_same_size_at_random_does_little(numbers: Any) -> None:
    for layer in ("blocks.1", "blocks.3"):
        moved = 1 - numbers("random_signs", 8, "top1_match", layer)["value"]
        assert moved.mean() == pytest.approx(0.05, abs=0.01)
    assert numbers("random_signs", 8, "accuracy")["value"].min() > 0.96


def test_where_prc_is_steadier(numbers: Any) -> None:
    for epsilon in EPSILONS:
        for view, layer in (
            ("attack", "blocks.1"),
            ("random_signs", "blocks.1"),
            ("random_signs", "blocks.3"),
        ):
            found = numbers(view, epsilon, "top1_match", layer, difference=True)
            assert (found["ci_low"] > 0).all(), (view, epsilon, layer)
    strongest = numbers("attack", 8, "top1_match", "blocks.3", difference=True)
    assert (strongest["value"] < 0).all() and (strongest["ci_high"] < 0).sum() == 2


def test_what_is_left_of_the_accuracy(numbers: Any) -> None:
    weak = numbers("attack", 2, "accuracy", difference=True)
    assert (weak["ci_low"] > 0).sum() == 2 and (weak["value"] > 0).all()
    strong = numbers("attack", 8, "accuracy", difference=True)
    assert ((strong["ci_low"] <= 0) & (strong["ci_high"] >= 0)).all()


def test_how_many_intervals_there_are() -> None:
    rows = [line.split("|") for line in attack_tables.lines(REPORTS)[2:]]
    assert 3 * sum(cell.strip().endswith(")") for row in rows for cell in row) == 72
    assert "72 are in the table" in (ROOT / "docs/results/attack.md").read_text(encoding="utf-8")
