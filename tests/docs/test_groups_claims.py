"""What docs/results/groups-experts.md says in words of groups of images follows from the committed numbers."""

from pathlib import Path

import pandas as pd
import pytest

from moeprobe.models.nn.plans import CapacityRule
from tests.docs.pages import ROOT, text
from tests.docs.sweeps import changed, differences_of, excluding_zero, table_of

TOGETHER, ALONE = (ROOT / f"reports/sweeps/{name}-digits" for name in ("groups", "groups-alone"))
EIGHT = tuple(f"{router}_expert_choice-group_images-8" for router in ("softmax", "sinkhorn", "sparse"))
FIRST, LAST = "blocks.1", "blocks.3"


def values(metric: str, *, layer: str = "", null: str = "", view: str = "clean") -> pd.DataFrame:
    """Return a number of every checkpoint in groups of eight and alone."""
    found = {}
    for name, folder in (("together", TOGETHER), ("alone", ALONE)):
        rows = table_of(folder)
        rows = rows[(rows["metric"] == metric) & (rows["layer"] == layer) & (rows["null"] == null)]
        rows = rows[(rows["view"] == view) & rows["draw"].isna() & rows["tokens"].isin(["", "patch"])]
        found[name] = rows.drop_duplicates("checkpoint").set_index("checkpoint")["value"]
    both = pd.DataFrame(found)
    assert len(both) == 18 and both.notna().all(axis=None)
    return both


@pytest.mark.parametrize(
    ("folder", "signs", "mean", "above"), [(TOGETHER, (5, 4), 0.001, 0), (ALONE, (5, 1), 0.006, 1)]
)
def test_no_difference_in_accuracy(folder: Path, signs: tuple[int, int], mean: float, above: int) -> None:
    rows = changed(differences_of(folder), "accuracy", *EIGHT)
    assert ((rows["value"] > 0).sum(), (rows["value"] < 0).sum()) == signs
    assert round(rows["value"].mean(), 3) == mean
    assert (rows["ci_low"] > 0).sum() == above and not (rows["ci_high"] < 0).any()
    found = (1.96 + 0.84) * (rows["ci_high"] - rows["ci_low"]) / 2 / 1.96
    assert found.min() > 0.02 and 0.029 < found.max() <= 0.03
    assert "three points would be, with a power of .8" in text("results/groups-experts.md")


def test_each_measured_as_it_was_trained() -> None:
    accuracy = values("accuracy")
    trained = accuracy.loc[accuracy.index.str.contains("images-8"), "together"]
    more = [
        value - accuracy["alone"][name.replace("images-8", "images-1")] for name, value in trained.items()
    ]
    assert len(more) == 9 and round(sum(more) / 9, 3) == 0.003


@pytest.mark.parametrize(("folder", "higher", "mean"), [(TOGETHER, 8, 0.027), (ALONE, 7, 0.021)])
def test_with_noise_those_trained_in_eight_tend_to_be_more_accurate(
    folder: Path, higher: int, mean: float
) -> None:
    rows = changed(differences_of(folder), "accuracy, σ 0.2", *EIGHT)
    assert (rows["value"] > 0).sum() == higher and round(rows["value"].mean(), 3) == mean
    assert excluding_zero(rows) == 2


@pytest.mark.parametrize(("layer", "fewer"), [(FIRST, 0.08), (LAST, 0.13)])
def test_more_patches_are_served_in_groups_of_eight(layer: str, fewer: float) -> None:
    unserved = values("unserved", layer=layer)
    less = unserved["alone"] - unserved["together"]
    assert (less > 0).all() and round(less.mean(), 2) == fewer


def test_there_is_more_room_in_groups_of_eight() -> None:
    found = pd.concat(values("experts_per_token", layer=layer) for layer in (FIRST, LAST)).mean()
    assert (round(found["together"], 2), round(found["alone"], 2)) == (1.00, 0.94)
    rule = CapacityRule(1.0, rounding="round", multiple_of=1)
    assert [rule.capacity(group_size=17 * images, num_experts=8, top_k=1) for images in (1, 8)] == [2, 17]


@pytest.mark.parametrize(
    ("layer", "null", "least", "most"),
    [(LAST, "pooled", 0.13, 0.24), (LAST, "image", -0.10, -0.01), (FIRST, "pooled", 0.01, 0.07)],
)
def test_steadiness_depends_on_how_it_is_measured(layer: str, null: str, least: float, most: float) -> None:
    both = values("weight_cosine_kappa", layer=layer, null=null, view="random_crop")
    more = both["together"] - both["alone"]
    assert (round(more.min(), 2), round(more.max(), 2)) == (least, most)


def test_it_depends_on_training_less_in_the_last_layer() -> None:
    for folder in (TOGETHER, ALONE):
        rows = changed(differences_of(folder), "κ, random_crop", *EIGHT, layer=LAST)
        assert rows["value"].abs().max() < 0.13
