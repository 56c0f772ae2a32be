"""The report on routers' choices: its differences are those of its values, and both are those of the probe."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reports.scripts import regenerate_regret, regret_tables

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
PLACE = ["data", "top_k", "weights", "layer", "tokens", "metric"]


@pytest.mark.parametrize(
    "names", [("regret/values", "regret/trainings"), ("real/regret", "real/regret-trainings")]
)
def test_a_difference_over_trainings_is_the_mean_of_the_seeds(names: tuple[str, str]) -> None:
    values, trainings = (pd.read_csv(REPORTS / f"{name}.csv") for name in names)
    of_models = values.assign(model=values["checkpoint"].str.split("-").str[1])
    means = of_models.groupby([*PLACE, "model"])["value"].mean().unstack("model")
    differences = trainings.set_index(PLACE)
    assert differences["trainings"].eq(3).all() and differences.index.is_unique
    expected = (means["prc"] - means["baseline"]).loc[differences.index]
    np.testing.assert_allclose(differences["value"], expected, atol=2e-6)
    assert (differences["sim_low"] < differences["value"]).all()
    kappas = values[values["metric"] == "choice_rank_kappa"].groupby(PLACE).size()
    assert kappas.eq(6).all() and len(kappas) >= 4


@pytest.mark.slow
@pytest.mark.promise
def test_the_numbers_are_those_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    values, _ = regenerate_regret.measure("digits", 1, regenerate_regret.ROUTER, limit=24)
    committed = pd.read_csv(REPORTS / "regret" / "values.csv")
    committed = committed[(committed["data"] == "digits") & (committed["top_k"] == 1)]
    keys = ["checkpoint", "layer", "tokens", "metric"]
    of_router = committed[committed["weights"] == regenerate_regret.ROUTER]
    assert {*map(tuple, values[keys].values)} == {*map(tuple, of_router[keys].values)}
    # The first 24 images are among all of them, so shares differ by what as many images may.
    apart = values.set_index(keys)["value"] - of_router.set_index(keys)["value"]
    assert apart[apart.index.get_level_values("metric") == "choice_right"].abs().max() < 0.15


def test_the_tables_have_a_line_for_each_place_with_something_at_stake() -> None:
    folder = REPORTS / "regret"
    for lines in (regret_tables.ranks(folder), regret_tables.losses(folder)):
        # Patches of the last MoE layer do not reach the class token.
        assert len(lines) == 2 + 2 * 2 * 3
        assert not any("nan" in line for line in lines)
    assert (folder / "ranks.png").exists()
