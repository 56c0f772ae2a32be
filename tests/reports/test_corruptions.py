"""The committed table of corruptions, computed again for one of them."""

import pandas as pd
import pytest

from moeprobe import api
from reports.scripts import regenerate_corruptions as script


@pytest.mark.slow
def test_a_corruption_computed_again_is_as_in_the_table() -> None:
    table = pd.read_csv(script.OUT / "digits.csv", keep_default_na=False)
    committed = table[(table["view"] == "fog") & (table["seed"] == 1) & (table["model"] == "V-MoE with PRC")]
    result = api.sweep(
        script.CHECKPOINTS / "digits-prc-k2-seed1",
        view="corruption,kind=fog",
        severities=script.SEVERITIES,
        limit=script.IMAGES,
        device="cpu",
    )
    for metric, layer in (("accuracy", ""), ("top2_set_match_kappa", "blocks.3")):
        swept = result.table[(result.table["metric"] == metric) & (result.table["layer"] == layer)]
        swept = swept[swept["tokens"].isin(["", "patch"]) & swept["null"].isin(["", "pooled"])]
        swept = swept[swept["severity"].isin(script.SEVERITIES) & swept["view"].eq("corruption")]
        assert len(swept) == len(script.SEVERITIES)
        (row,) = committed[(committed["metric"] == metric) & (committed["layer"] == layer)].to_dict("records")
        assert float(row["value"]) == pytest.approx(swept["value"].mean(), abs=1e-6)
