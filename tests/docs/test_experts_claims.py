"""What docs/results/groups-experts.md says in words of the number of experts follows from the committed numbers."""

import pandas as pd
import pytest

from tests.docs.pages import ROOT
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


def test_accuracy_does_not_depend_on_the_number_of_experts(accuracy: pd.DataFrame) -> None:
    means = accuracy.groupby("group")["value"].mean()
    assert len(means) == 14 and means.abs().max() < 0.0105
    one = means["softmax_token_choice-k1-num_experts-1"], means["softmax_expert_choice-c1-num_experts-1"]
    assert min(one) >= 0
    above, below = accuracy[accuracy["ci_low"] > 0], accuracy[accuracy["ci_high"] < 0]
    assert (len(accuracy), len(above), len(below)) == (42, 2, 4)
    assert pd.concat([above, below])["group"].str.startswith("soft_moe").sum() == 5


def test_more_experts_are_less_steady(steadiness: pd.DataFrame) -> None:
    means = steadiness.groupby(["layer", "router"]).mean()
    ends = {router: tuple(means.loc[("blocks.1", router), [2, 32]].round(2)) for router in CHOOSING}
    assert ends == {"softmax_token_choice": (0.58, 0.21), "softmax_expert_choice": (0.54, 0.26)}
    for layer in LAYERS:
        for router in CHOOSING:
            own = steadiness.loc[(layer, router), [4, 8, 16, 32]]
            assert len(own) == 3 and (own.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)


def test_soft_moe_is_as_steady_with_many(steadiness: pd.DataFrame, accuracy: pd.DataFrame) -> None:
    own = steadiness.loc[("blocks.1", "soft_moe"), [2, 4, 8, 16, 32]]
    assert (round(own.min(axis=None), 2), round(own.max(axis=None), 2)) == (0.58, 0.76)
    many = accuracy[accuracy["group"] == "soft_moe-slots-1-num_experts-32"]["value"]
    assert len(many) == 3 and round(many.mean(), 3) == -0.005
