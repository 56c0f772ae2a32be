"""What docs/results/groups-experts.md says in words of the number of experts follows from the committed numbers."""

import pandas as pd
import pytest

from moeprobe.models.nn.plans import CapacityRule
from tests.docs.pages import ROOT, text
from tests.docs.sweeps import differences_of, table_of

FOLDER = ROOT / "reports/sweeps/experts-digits"
LAYERS = ("blocks.1", "blocks.3")
CHOOSING = ("softmax_token_choice", "softmax_expert_choice")


@pytest.fixture(scope="module")
def accuracy() -> pd.DataFrame:
    rows = differences_of(FOLDER)
    return rows[rows["number"] == "accuracy"]


@pytest.fixture(scope="module")
def steadiness() -> pd.DataFrame:
    """κ of the weights: a row per layer, router and seed; a column per number of experts."""
    rows = table_of(FOLDER)
    rows = rows[(rows["metric"] == "weight_cosine_kappa") & (rows["null"] == "pooled")]
    rows = rows[(rows["view"] == "random_crop") & (rows["tokens"] == "patch") & rows["draw"].isna()]
    rows = rows.drop_duplicates(["checkpoint", "layer"]).astype({"num_experts": int})
    return rows.pivot(index=["layer", "router", "train_seed"], columns="num_experts", values="value")


def test_no_number_of_experts_is_more_accurate(accuracy: pd.DataFrame) -> None:
    means = accuracy.groupby("group")["value"].mean()
    assert len(means) == 14 and means.abs().max() < 0.0105
    one = means["softmax_token_choice-k1-num_experts-1"], means["softmax_expert_choice-c1-num_experts-1"]
    assert min(one) >= 0
    above, below = accuracy[accuracy["ci_low"] > 0], accuracy[accuracy["ci_high"] < 0]
    assert (len(accuracy), len(above), len(below)) == (42, 2, 4)
    assert below["group"].str.startswith("soft_moe").all() and (below["train_seed"] == 0).all()
    found = (1.96 + 0.84) * (accuracy["ci_high"] - accuracy["ci_low"]) / 2 / 1.96
    assert (round(found.min(), 3), round(found.max(), 3)) == (0.016, 0.032)
    said = " ".join(text("results/groups-experts.md").split())
    assert "find differences of 1.6 to 3.2 points with a power of .8" in said


def test_where_experts_choose_more_of_them_do_more_work() -> None:
    rows = table_of(FOLDER)
    rows = rows[(rows["metric"] == "flops_per_image") & (rows["router"] == CHOOSING[1])]
    rule = CapacityRule(1.0, rounding="ceil", multiple_of=1)
    places = [
        experts * (rule.capacity(group_size=17, num_experts=experts, top_k=1) or 0)
        for experts in (1, 2, 4, 8, 16, 32)
    ]
    assert places == [17, 18, 20, 24, 32, 32]
    work = rows.drop_duplicates("num_experts").sort_values("num_experts")["value"].diff().iloc[1:]
    # A place of two layers of width 64 and hidden width 128, and E gates for each of 17 tokens.
    gates = [2 * 2 * 17 * 64 * more for more in (1, 2, 4, 8, 16)]
    per_place = 2 * 2 * 2 * 64 * 128
    expected = [per_place * (b - a) + more for a, b, more in zip(places, places[1:], gates, strict=False)]
    assert list(work) == expected


def test_from_four_on_more_experts_are_less_steady(steadiness: pd.DataFrame) -> None:
    means = steadiness.groupby(["layer", "router"]).mean()
    ends = {router: tuple(means.loc[("blocks.1", router), [4, 32]].round(2)) for router in CHOOSING}
    assert ends == {"softmax_token_choice": (0.45, 0.21), "softmax_expert_choice": (0.5, 0.26)}
    falling = dict.fromkeys(CHOOSING, 0)
    for layer in LAYERS:
        for router in CHOOSING:
            own = steadiness.loc[(layer, router), [4, 8, 16, 32]]
            assert len(own) == 3 and (own.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)
            few = steadiness.loc[(layer, router)]
            falling[router] += int((few[4] < few[2]).sum())
    assert list(falling.values()) == [5, 3]


def test_soft_moe_is_as_steady_with_many(steadiness: pd.DataFrame, accuracy: pd.DataFrame) -> None:
    for layer, ends in zip(LAYERS, ((0.58, 0.76), (0.70, 0.81)), strict=True):
        own = steadiness.loc[(layer, "soft_moe"), [2, 4, 8, 16, 32]]
        assert (round(own.min(axis=None), 2), round(own.max(axis=None), 2)) == ends
    many = accuracy[accuracy["group"] == "soft_moe-slots-1-num_experts-32"]
    assert len(many) == 3 and round(many["value"].mean(), 3) == -0.005
    assert ((many["ci_high"] < 0).sum(), (many["ci_low"] > 0).sum()) == (1, 0)
