"""What docs/results/prc-ablation.md says of a baseline with mixup follows from the committed numbers."""

import pandas as pd

from tests.docs.pages import ROOT
from tests.docs.sweeps import differences_of

FOLDER = ROOT / "reports/sweeps/mixup-digits"
KAPPAS = (
    "κ, prc_crops",
    "κ within the image, prc_crops",
    "κ, noise σ 0.2",
    "κ within the image, noise σ 0.2",
)


def changed(group: str, number: str) -> pd.DataFrame:
    rows = differences_of(FOLDER)
    here = rows[(rows["group"] == group) & (rows["number"] == number)]
    assert set(here["train_seed"]) == {0, 1, 2}
    return here


def test_without_the_second_view_v_moe_is_less_accurate() -> None:
    rows = changed("one-view", "accuracy")
    assert (rows["ci_high"] < 0).all()
    assert (round(rows["value"].min(), 2), round(rows["value"].max(), 2)) == (-0.09, -0.04)
    rows = changed("mixup", "accuracy")
    assert (round(rows["value"].min(), 3), round(rows["value"].max(), 3)) == (-0.039, 0.031)
    assert ((rows["ci_high"] < 0).sum(), (rows["ci_low"] > 0).sum()) == (1, 0)
    rows = changed("prc", "accuracy")
    assert (rows["ci_low"] > 0).all()
    assert (round(rows["value"].min(), 2), round(rows["value"].max(), 2)) == (0.07, 0.09)


def test_against_the_baseline_without_it() -> None:
    rows = pd.read_csv(FOLDER / "more-differences.csv")
    accuracy = rows[rows["number"] == "accuracy"]
    assert set(accuracy["train_seed"]) == {0, 1, 2} and set(rows["group"]) == {"prc"}
    assert ((accuracy["ci_low"] > 0).sum(), (accuracy["ci_high"] < 0).sum()) == (1, 0)
    assert (round(accuracy["value"].min(), 2), round(accuracy["value"].max(), 2)) == (-0.01, 0.03)
    kappas = rows[rows["number"].isin(KAPPAS)]
    assert len(kappas) == 24 and (kappas["ci_low"] > 0).all()


def test_mixup_makes_the_first_layer_less_steady() -> None:
    for number in KAPPAS:
        rows = changed("mixup", number)
        rows = rows[rows["layer"] == "blocks.1"]
        assert len(rows) == 3 and (rows["ci_high"] < 0).all()


def test_routing_is_steadier_than_with_mixup() -> None:
    for number in KAPPAS:
        rows = changed("prc", number)
        assert len(rows) == 6 and (rows["ci_low"] > 0).all()
