"""The tables of the reports are those of their numbers, and their numbers agree with each other."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from moeprobe.studies.paper.tables import markdown
from reports.scripts import at_once, claims, regenerate, regenerate_routers
from reports.scripts.contrasts import CONTRASTS
from reports.scripts.seeds import read, spread
from tests.reports.test_trainings import crossed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_the_papers_tables_are_those_of_the_numbers(data: str) -> None:
    folder = ROOT / "reports" / data
    table = pd.read_csv(folder / "seeds.csv").fillna({"layer": ""})
    text = markdown(table, pd.read_csv(folder / "load.csv"), data=data, remarks=regenerate.REMARKS)
    assert (folder / "tables.md").read_text(encoding="utf-8") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted((ROOT / "reports" / "routers").iterdir()), ids=lambda path: path.name
)
def test_the_numbers_of_the_routers_are_those_of_their_reports(folder: Path) -> None:
    table, differing = read(folder)
    assert (folder / "tables.md").read_text(encoding="utf-8") == regenerate_routers.tables(table, differing)
    assert not list(folder.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("data", "budgets", "seeds"),
    [("digits", (1, 2), 3), ("shapes", (2,), 3), ("digits-patch4", (1, 2), 3), ("digits-deep", (1, 2), 1)],
)
def test_contrasts_of_routers_are_differences_of_means(
    data: str, budgets: tuple[int, ...], seeds: int
) -> None:
    """Of the accuracies in the table of all cells, which are over the same images, and of the paper's values.

    The two other layouts are of the paper's routers alone: without sparse token choice.
    """
    folder = ROOT / "reports" / "routers" / data
    contrasts, names = pd.read_csv(folder / "contrasts.csv"), CONTRASTS
    table = pd.read_csv(folder / "table.csv.gz", low_memory=False)
    budget = table["top_k"].fillna(table["capacity_factor"])
    table = table[table["draw"].isna() & table["layer"].isna() & table["view"].eq("clean")].assign(
        budget=budget
    )
    metrics = {"accuracy": ("accuracy", None), "10-shot accuracy": ("fewshot_accuracy", 10.0)}
    assert set(contrasts["budget"]) == set(budgets)
    own = contrasts[contrasts["source"] == "seed"]
    lacking = set() if data in ("digits", "shapes") else {"token choice: sparse − softmax"}
    assert set(own["contrast"]) == set(names) - lacking
    assert len(own) == own["contrast"].nunique() * len(metrics) * len(budgets) * seeds
    for row in own.itertuples():
        metric, severity = metrics[row.measure]
        here = table[(table["metric"] == metric) & (table["budget"] == row.budget)]
        here = here[
            (here["train_seed"] == int(row.which)) & (severity is None or here["severity"] == severity)
        ]
        values = here.drop_duplicates("router").set_index("router")["value"]
        sides = [values.reindex(side).dropna() for side in names[row.contrast]]
        first, second = (sum(side) / len(side) for side in sides)
        assert row.value == pytest.approx(first - second, abs=1e-8)
        assert row.ci_low <= row.value <= row.ci_high and row.images == here["images"].iloc[0]
    together = contrasts[contrasts["source"] == "trainings"]
    keys = ["measure", "contrast", "budget"]
    assert len(together) == (0 if seeds == 1 else len(own) / seeds)
    for row in together.itertuples():
        same = own[(own[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
        assert row.value == pytest.approx(same["value"].mean(), abs=1e-8)
        assert row.ci_low <= row.value <= row.ci_high and row.images == same["images"].iloc[0]
    # By hand, of the paper's Table 1: (43.83 + 43.65 + 43.43) / 3 − (41.23 + 41.63) / 2.
    theirs = contrasts[contrasts["source"] == "paper"]
    if 1 in budgets:
        first = theirs[(theirs["contrast"] == "expert choice − token choice") & (theirs["which"] == "B/32")]
        assert first["value"].iloc[0] == pytest.approx(0.022067, abs=1e-6)


@pytest.mark.parametrize("family", [1, 2])
def test_an_interval_over_trainings_has_the_variances_of_both_samples(family: int) -> None:
    """By the formulas of the page on intervals, of three trainings and forty images that both vary."""
    rng = np.random.default_rng(5)
    found = rng.normal(0.1, 0.02, (3, 1)) + rng.normal(0, 0.1, 40) + rng.normal(0, 0.1, (3, 40))
    value, error, freedom = crossed(found)
    reach = stats.t.isf((1 - 0.95 ** (1 / family)) / 2, freedom) * error
    expected = {"value": value, "ci_low": value - reach, "ci_high": value + reach}
    assert claims.over_trainings(found, family=family) == pytest.approx(expected, rel=1e-9)
    # Neither sample alone says as much.
    assert error > max(stats.sem(found.mean(1)), stats.sem(found.mean(0)))


def test_folders_are_made_at_once_and_an_error_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # put back afterwards
    each, names = at_once.each, [str(tmp_path / name) for name in "abc"]
    each(os.mkdir, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    with pytest.raises(FileExistsError):
        each(os.mkdir, names[1:])


def test_a_difference_of_one_training_is_shown_with_its_interval() -> None:
    one = pd.DataFrame({"value": [-0.0001], "ci_low": [-0.02], "ci_high": [0.03]})
    assert spread(one) == "+0.000 [-0.020, +0.030]"
    assert spread(one.assign(ci_low=float("nan"), ci_high=float("nan"))) == "+0.000"
    assert spread(pd.concat([one, one])) == "+0.000 to +0.000 (0)"


@pytest.mark.parametrize("data", ["digits", "shapes"])
@pytest.mark.parametrize(("choices", "name"), [("all", "dead experts"), ("first", "dead as first choice")])
def test_dead_experts_get_less_than_a_tenth_of_an_even_load(data: str, choices: str, name: str) -> None:
    table = pd.read_csv(ROOT / "reports" / data / "seeds.csv")
    keys = ["layer", "model", "top_k", "seed"]
    dead = table[(table["number"] == name) & (table["kind"] == "value")].set_index(keys)["value"]
    load = pd.read_csv(ROOT / "reports" / data / "load.csv")
    load = load[load["choices"] == choices]
    counted = (load["share"] < 1 / 80).groupby([load[key] for key in keys]).sum()
    assert len(dead) > 0 and (counted.reindex(dead.index) == dead).all()
