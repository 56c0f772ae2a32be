"""What README and docs/results/fashion-mnist.md say in words follows from the committed numbers."""

import pandas as pd
import pytest

from tests.docs.pages import ROOT

REPORT = ROOT / "reports/fashion"
BASELINE, PRC, BASELINE_1, PRC_1 = (
    f"fashion-{objective}-k{top_k}-seed0" for top_k in (2, 1) for objective in ("baseline", "prc")
)


def numbers(file: str, metric: str, *, null: str = "", checkpoint: str = PRC) -> pd.DataFrame:
    """Return the rows of patches, or of the output, of one metric of one checkpoint."""
    table = pd.read_csv(REPORT / file, keep_default_na=False, na_values={"value": [""]})
    table = table[(table["metric"] == metric) & (table["null"] == null) & (table["checkpoint"] == checkpoint)]
    table = table[table["tokens"].isin(["", "patch"])]
    assert not table.empty
    return table.astype({"ci_low": float, "ci_high": float})


@pytest.mark.parametrize(("folder", "checkpoint"), [("eval", PRC), ("eval-k1", PRC_1)])
def test_the_accuracies_cannot_be_told_apart(folder: str, checkpoint: str) -> None:
    (row,) = numbers(f"{folder}/comparison.csv", "accuracy", checkpoint=checkpoint).itertuples()
    assert row.ci_low < 0 < row.ci_high
    assert row.ci_high - row.ci_low < 2 * 0.0055  # more than half a point would be seen
    assert row.images == 10_000


def test_prc_with_one_expert_is_worse_than_the_baseline_with_two() -> None:
    (row,) = numbers("eval/comparison.csv", "accuracy", checkpoint=PRC_1).itertuples()
    assert row.ci_high < 0 and row.value > -0.01


def test_prc_is_far_steadier_and_does_not_collapse() -> None:
    pooled = numbers("match-ratio/comparison.csv", "top1_match_kappa", null="pooled")
    within = numbers("match-ratio/comparison.csv", "top1_match_kappa", null="image")
    assert (pooled["ci_low"] > 0.3).all() and (within["ci_low"] > 0.1).all() and len(pooled) == 2
    assert (within["value"].to_numpy() / pooled["value"].to_numpy()).round(1).tolist() == [0.5, 0.5]
    for name in (BASELINE, PRC):
        assert (numbers("match-ratio/table.csv", "dead_experts", checkpoint=name)["value"] == 0).all()
        assert (numbers("match-ratio/table.csv", "load_entropy", checkpoint=name)["value"] > 0.98).all()


def test_balanced_experts_go_by_place_and_those_of_prc_know_of_classes() -> None:
    place, color = (
        numbers("routes/table.csv", f"{kind}_information", checkpoint=BASELINE)["value"].to_numpy()
        for kind in ("position", "color")
    )
    assert (place > 3 * color).all()
    for kind in ("class", "color"):
        difference = numbers("routes/comparison.csv", f"{kind}_information")
        assert (difference["ci_low"] > 0).all()
    assert (numbers("routes/comparison.csv", "position_information")["ci_high"] < 0).all()


def test_classes_that_share_an_expert() -> None:
    shares = pd.read_csv(REPORT / "routes/classes.csv")
    shares = shares[(shares["checkpoint"] == PRC) & shares["class"].notna() & (shares["tokens"] == "patch")]
    for layer, rows in shares.groupby("layer"):
        most = rows.loc[rows.groupby("class")["value"].idxmax()].set_index("class")
        assert most.loc["sandal", "expert"] == most.loc["sneaker", "expert"], layer
        assert most.loc[["sandal", "sneaker"], "value"].min() > 0.5
        assert most.loc["ankle boot", "expert"] == most.loc["bag", "expert"] != most.loc["sandal", "expert"]


def test_without_experts_a_few_points_are_lost_and_less_with_prc() -> None:
    lost = {}
    for name in (BASELINE, PRC):
        values = [
            numbers("settings/table.csv", "accuracy", checkpoint=f"{name}{served}")["value"].iloc[0]
            for served in ("", ",experts=off")
        ]
        lost[name] = values[0] - values[1]
    assert 0.005 < lost[PRC] < lost[BASELINE] < 0.05


def test_the_surest_first_helps_the_balanced_model_alone() -> None:
    def change(name: str, priority: str) -> pd.Series:
        served = f"{name},capacity=0.1,priority={priority}"
        return numbers(f"capacity-{name}/comparison.csv", "accuracy", checkpoint=served).iloc[0]

    assert change(BASELINE, "gate")["ci_low"] > change(BASELINE, "order")["ci_high"]
    assert change(PRC, "order")["ci_low"] < change(PRC, "gate")["value"] < change(PRC, "order")["ci_high"]
