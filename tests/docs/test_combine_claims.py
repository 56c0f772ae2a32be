"""What docs/results/combine.md says in words follows from the committed numbers."""

import io
from itertools import product

import pandas as pd
import pytest

from moeprobe.results.packed import read_pack
from tests.docs.pages import ROOT, text
from tests.docs.sweeps import changed, differences_of, excluding_zero, table_of

FOLDER = ROOT / "reports/sweeps/combine-digits"
TOKENS = ("sinkhorn_token_choice-combine-plan-k1", "sinkhorn_token_choice-combine-plan-k2")
SINKHORN = ("sinkhorn_expert_choice-combine-plan-c1", "sinkhorn_expert_choice-combine-plan-c2")
SPARSE = ("sparse_expert_choice-combine-plan-c1", "sparse_expert_choice-combine-plan-c2")
KAPPAS = ("κ, random_crop", "κ within the image, random_crop")
FIRST, LAST = "blocks.1", "blocks.3"


@pytest.fixture(scope="module")
def differences() -> pd.DataFrame:
    return differences_of(FOLDER)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return table_of(FOLDER)


def test_where_tokens_choose(differences: pd.DataFrame) -> None:
    rows = changed(differences, "accuracy", *TOKENS)
    assert (rows["value"] < 0).sum() == 5 and excluding_zero(rows) == 1
    assert round(rows["value"].mean(), 3) == -0.006


def test_where_experts_choose(differences: pd.DataFrame) -> None:
    rows = changed(differences, "accuracy", *(SINKHORN + SPARSE))
    assert ((rows["value"] > 0).sum(), (rows["value"] == 0).sum()) == (9, 1) and excluding_zero(rows) == 1
    assert round(rows["value"].mean(), 3) == 0.006


def test_no_curve_leads_throughout() -> None:
    cells = read_pack(FOLDER)
    ahead = {}
    for size in ("k1", "k2"):
        for combine in ("softmax", "plan"):
            names = [f"sinkhorn_token_choice-combine-{combine}-{size}-seed{seed}" for seed in range(3)]
            curves = [pd.read_csv(io.StringIO(cells[name].metrics)).set_index("epoch") for name in names]
            ahead[size, combine] = pd.concat([curve["val_accuracy"] for curve in curves], axis=1).mean(axis=1)
    assert len(ahead["k1", "plan"]) == 40
    assert (ahead["k1", "softmax"] > ahead["k1", "plan"]).sum() == 29
    assert (ahead["k2", "plan"] > ahead["k2", "softmax"]).sum() == 24


def test_the_plans_weights(differences: pd.DataFrame, table: pd.DataFrame) -> None:
    for number in KAPPAS:
        assert (changed(differences, number, *(TOKENS + SINKHORN), layer=FIRST)["value"] > 0).all()
        assert (changed(differences, number, *SPARSE[1:], layer=FIRST)["value"] < 0).all()
        every = pd.concat(
            changed(differences, number, *(TOKENS + SINKHORN + SPARSE), layer=layer)
            for layer in (FIRST, LAST)
        )
        assert (every["value"] > 0).mean() > 0.75
    rows = table[(table["metric"] == "gate_highest") & (table["view"] == "clean")]
    rows = rows[rows["draw"].isna() & (rows["tokens"] == "patch")]
    assert rows.loc[rows["group"].isin(SPARSE), "value"].isna().all()
    pairs = rows.drop_duplicates(["checkpoint", "layer"]).set_index(["group", "train_seed", "layer"])["value"]
    lower = [
        pairs[group, seed, layer] < pairs[group.replace("plan", "softmax"), seed, layer]
        for group, seed, layer in product(TOKENS + SINKHORN, range(3), (FIRST, LAST))
    ]
    assert (sum(lower), len(lower)) == (23, 24)


def test_how_many_trainings(table: pd.DataFrame) -> None:
    assert f"{table['checkpoint'].nunique()} trainings" in text("results/combine.md")
