"""What docs/results/ten-routers.md says in words follows from the committed numbers."""

from itertools import product

import pandas as pd
import pytest

from tests.docs.pages import ROOT, text
from tests.docs.sweeps import above, below

FIRST, LAST = "blocks.1", "blocks.3"
CROPS = ("random_crop", "prc_crops")
NOISE = "noise σ 0.2"
POOLED, WITHIN = "κ, {}", "κ within the image, {}"
ALL = (*CROPS, NOISE)


@pytest.fixture(scope="module")
def of() -> dict[str, pd.DataFrame]:
    """The differences of each data set; the tables of the page show those with two experts per token."""
    folders = {name: ROOT / "reports/routers" / name for name in ("digits", "shapes")}
    return {name: pd.read_csv(one / "differences.csv").fillna({"layer": ""}) for name, one in folders.items()}


def seeds(table: pd.DataFrame, router: str, layer: str, number: str) -> pd.DataFrame:
    """Return a difference of three seeds."""
    same = (table["router"] == router) & (table["layer"] == layer) & (table["number"] == number)
    found = table[same & table["group"].str.endswith(("-k2", "-c2"))]
    assert sorted(found["train_seed"]) == [0, 1, 2]
    return found.sort_values("train_seed")


def test_a_gate_that_never_learned(of: dict[str, pd.DataFrame]) -> None:
    def rows(data: str, layer: str, number: str) -> pd.DataFrame:
        return seeds(of[data], "random_fixed", layer, number)

    for data, view in product(of, CROPS):
        assert (rows(data, LAST, POOLED.format(view))["value"] > 0).all()
    within = [WITHIN.format(view) for view in ALL]
    assert all(below(rows("digits", LAST, number)) == 3 for number in within)
    assert sum(below(rows("shapes", LAST, number)) for number in within) == 5
    assert sum(above(rows("shapes", LAST, number)) for number in within) == 0
    assert all((rows("digits", FIRST, number)["value"] < 0).all() for number in within)
    assert sum(below(rows("digits", FIRST, number)) for number in within) == 8
    assert all(
        above(rows("shapes", FIRST, number)) and below(rows("shapes", FIRST, number)) for number in within
    )


def steadiest(table: pd.DataFrame, router: str, layer: str, number: str) -> bool:
    """Whether a router is steadier than V-MoE's and all others, in every seed."""
    others = [seeds(table, one, layer, number)["value"].to_numpy() for one in sorted(set(table["router"]))]
    own = seeds(table, router, layer, number)["value"].to_numpy()
    return bool((own > 0).all() and all((own >= other).all() for other in others))


def test_soft_moe(of: dict[str, pd.DataFrame]) -> None:
    for data, layer, view in product(of, (FIRST, LAST), ALL):
        assert steadiest(of[data], "soft_moe", layer, POOLED.format(view))
        if (data, layer) != ("digits", LAST):
            assert above(seeds(of[data], "soft_moe", layer, WITHIN.format(view))) == 3
        else:
            assert below(seeds(of[data], "soft_moe", layer, WITHIN.format(view))) == 3


def test_priority(of: dict[str, pd.DataFrame]) -> None:
    number_above = {
        (data, view): above(seeds(of[data], "priority", LAST, WITHIN.format(view)))
        for data, view in product(of, ALL)
    }
    wanted = dict.fromkeys(product(of, ALL), 3)
    assert number_above == wanted | {("shapes", NOISE): 2, ("shapes", "prc_crops"): 0}
    pooled = {key: above(seeds(of[key[0]], "priority", LAST, POOLED.format(key[1]))) for key in wanted}
    assert [key for key, number in pooled.items() if number == 3] == [("digits", NOISE)]
    assert all(above(seeds(of["digits"], "priority", FIRST, POOLED.format(view))) == 3 for view in ALL)
    said = " ".join(text("results/ten-routers.md").split())
    assert "in `blocks.3` in every seed only under noise on digits; in `blocks.1` of digits" in said


def test_plans_and_expert_choice_come_after_and_hash_last(of: dict[str, pd.DataFrame]) -> None:
    for table in of.values():
        values = {
            router: seeds(table, router, LAST, POOLED.format(NOISE))["value"].to_numpy()
            for router in sorted(set(table["router"]))
        }
        assert len(values) == 9
        for router, own in values.items():
            if router.startswith(("sinkhorn", "sparse", "softmax")):
                assert (own < 0).all(), router
            if router != "hash":
                assert (values["hash"] < own).all(), router


def test_sinkhorn_leaves_fewer_patches_without_an_expert() -> None:
    for data in ("digits", "shapes"):
        table = pd.read_csv(ROOT / "reports/routers" / data / "table.csv.gz", low_memory=False)
        here = table[
            (table["metric"] == "unserved") & (table["view"] == "clean") & (table["tokens"] == "patch")
        ]
        here = here[here["draw"].isna()].drop_duplicates(["checkpoint", "layer"])
        keys = ["capacity_factor", "train_seed", "layer"]
        softmax, sinkhorn = (
            here[here["router"] == f"{kind}_expert_choice"].set_index(keys)["value"].sort_index()
            for kind in ("softmax", "sinkhorn")
        )
        assert len(softmax) in (6, 12) and (sinkhorn < softmax).all(), data


def test_accuracies_and_counts(of: dict[str, pd.DataFrame]) -> None:
    page = text("results/ten-routers.md")
    accuracy = pd.concat([table[table["number"] == "accuracy"] for table in of.values()])
    assert (len(accuracy), below(accuracy), above(accuracy)) == (81, 1, 1)
    assert "of 81 differences of clean accuracy one is below zero and one above" in page
    half = {
        name: (rows["ci_high"] - rows["ci_low"]) / 2
        for name, table in of.items()
        for rows in [table[table["number"] == "accuracy"]]
    }
    # "Intervals reach 1.5 to 2.3 points to either side on digits, four to five on shapes".
    assert half["digits"].min() == pytest.approx(0.015, abs=5e-4)
    assert half["digits"].max() == pytest.approx(0.023, abs=5e-4)
    assert half["shapes"].min() > 0.035 and half["shapes"].max() < 0.05
    shown = [one for table in of.values() for one in _shown(table)]
    assert f"{sum(map(len, shown))} are on this page" in page


def _shown(table: pd.DataFrame) -> list[pd.DataFrame]:
    routers = sorted(set(table["router"]))
    outputs = [seeds(table, one, "", number) for one in routers for number in ("accuracy", "accuracy, σ 0.2")]
    numbers = [kind.format(view) for kind in (POOLED, WITHIN) for view in ALL]
    return [*outputs, *(seeds(table, *one) for one in product(routers, (FIRST, LAST), numbers))]
