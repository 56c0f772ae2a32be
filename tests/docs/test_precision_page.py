"""The report on rounded weights: its tables are those of its numbers, and the page has them."""

import pandas as pd
import pytest

from reports.scripts import regenerate_precision
from tests.docs.pages import ROOT

REPORTS = ROOT / "reports" / "precision"
PAGE = ROOT / "docs" / "results" / "precision.md"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def tables() -> dict[str, pd.DataFrame]:
    return {path.stem: pd.read_csv(path) for path in sorted(REPORTS.glob("*.csv"))}


def test_the_page_has_the_tables_of_the_numbers() -> None:
    text = regenerate_precision.tables(tables())
    assert (REPORTS / "tables.md").read_text(encoding="utf-8") == text
    page = PAGE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * (2 + 5) and all(line in page for line in lines)
    assert all((REPORTS / f"{name}.png").exists() for name in tables())


def test_rounded_experts_change_no_choice_before_them() -> None:
    for name, table in tables().items():
        rows = table[(table["metric"] == "chooses_otherwise") & (table["part"] == "experts")]
        first = rows["layer"].iloc[0]
        assert (rows[rows["layer"] == first]["value"] == 0).all(), name
        # fp16 has more bits than bf16, and more of its range than these weights need.
        whole = table[(table["metric"] == "chooses_otherwise") & (table["part"] == "whole")]
        means = whole.groupby("format")["value"].mean()
        assert means["fp16"] <= means["bf16"] <= means["int4_g128"], name


def test_the_numbers_are_those_of_the_probe() -> None:
    result = regenerate_precision.digits(limit=24, checkpoints=["digits-prc-k2-seed0"])
    kept = regenerate_precision.numbers(result).set_index(["part", "format", "layer", "metric"])["value"]
    match = result.table[(result.table["metric"] == "top1_match") & (result.table["tokens"] == "patch")]
    for row in match.to_dict("records"):
        part, form = row["view"].split(" ")
        assert kept[part, form, row["layer"], "chooses_otherwise"] == pytest.approx(1 - row["value"])
    assert len(match) == 25 * 2


def test_what_the_page_says_of_the_digits_models() -> None:
    table = tables()["digits"]
    rows = table[table["metric"] == "chooses_otherwise"]
    means = rows.groupby(["format", "part"])["value"].mean().unstack()
    share = (means["router"] / means["whole"]).drop("fp16")
    assert 0.2 < share["bf16"] < 0.3 and share.max() == share["int8"] and 0.45 < share["int8"] < 0.55
    assert (means["experts"] <= means[["router", "attention", "rest"]].min(axis=1)).all()
    by_model = rows.pivot_table(index=["part", "format", "layer"], columns="checkpoint", values="value")
    assert (by_model["digits-prc-k2-seed0"] <= by_model["digits-baseline-k2-seed0"]).all()
    accuracy = table[table["metric"] == "accuracy"]
    for name in by_model.columns:
        own = accuracy[accuracy["checkpoint"] == name]
        whole = own[(own["part"] == "whole") & (own["format"] == "int4_g128")]["value"].tolist()
        clean = own[own["part"] == "clean"]["value"].tolist()
        assert [round(360 * one) for one in whole] == [round(360 * one) + 1 for one in clean]
