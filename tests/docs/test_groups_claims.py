"""What docs/results/groups-experts.md says in words of groups of images follows from the committed numbers."""

from pathlib import Path

import pandas as pd
import pytest

from tests.docs.pages import ROOT
from tests.docs.sweeps import changed, differences_of, table_of

TOGETHER, ALONE = (ROOT / f"reports/sweeps/{name}-digits" for name in ("groups", "groups-alone"))
EIGHT = tuple(f"{router}_expert_choice-group_images-8" for router in ("softmax", "sinkhorn", "sparse"))
FIRST, LAST = "blocks.1", "blocks.3"


def excluding_zero(rows: pd.DataFrame) -> int:
    return int(((rows["ci_low"] > 0) | (rows["ci_high"] < 0)).sum())


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


def test_accuracy_does_not_depend_on_it() -> None:
    rows = changed(differences_of(TOGETHER), "accuracy", *EIGHT)
    assert ((rows["value"] > 0).sum(), (rows["value"] < 0).sum()) == (5, 4)
    assert round(rows["value"].mean(), 3) == 0.001 and excluding_zero(rows) == 0
    accuracy = values("accuracy")
    trained = accuracy.loc[accuracy.index.str.contains("images-8"), "together"]
    as_trained = [
        value - accuracy["alone"][name.replace("images-8", "images-1")] for name, value in trained.items()
    ]
    assert len(as_trained) == 9 and round(sum(as_trained) / 9, 3) == 0.003


@pytest.mark.parametrize(("folder", "higher", "mean"), [(TOGETHER, 8, 0.027), (ALONE, 7, 0.021)])
def test_with_noise_those_trained_in_eight_are_more_accurate(folder: Path, higher: int, mean: float) -> None:
    rows = changed(differences_of(folder), "accuracy, σ 0.2", *EIGHT)
    assert (rows["value"] > 0).sum() == higher and round(rows["value"].mean(), 3) == mean
    assert excluding_zero(rows) == 2


@pytest.mark.parametrize(("layer", "fewer"), [(FIRST, 0.08), (LAST, 0.13)])
def test_shared_room_serves_more_patches(layer: str, fewer: float) -> None:
    unserved = values("unserved", layer=layer)
    less = unserved["alone"] - unserved["together"]
    assert (less > 0).all() and round(less.mean(), 2) == fewer


def test_steadiness_depends_on_how_it_is_measured() -> None:
    more = {
        null: values("weight_cosine_kappa", layer=LAST, null=null, view="random_crop").eval(
            "together - alone"
        )
        for null in ("pooled", "image")
    }
    assert (round(more["pooled"].min(), 2), round(more["pooled"].max(), 2)) == (0.13, 0.24)
    assert (round(more["image"].min(), 2), round(more["image"].max(), 2)) == (-0.10, -0.01)
